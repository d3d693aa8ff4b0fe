// SPDX-License-Identifier: Apache-2.0
// The rules that a plan breaks while its program is built: each cause once, with the entry that would repair it, and which
// repair is assumed where there are several. Private to program.cpp.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "sharded/op.hpp"
#include "sharded/partition_rules.hpp"
#include "sharded/program.hpp"
#include "sharded/step_rules.hpp"

namespace shardcheck {

/// Which of several repairs is assumed, by site: an op, axis and value whatever the layer.
using RepairChoices = std::map<std::string, std::size_t>;

class ProgramFindings {
 public:
  ProgramFindings(Program& program, const PartitionCheck& partitions, const RepairChoices& choices);

  /// A value of broken ranges: what its consumers say about ranges is no second mistake.
  void mark_broken(int value) { broken_.insert(value); }
  bool is_broken(int value) const { return broken_.contains(value); }

  /// Which of `options` repairs is assumed at this site.
  std::size_t choose(const std::string& key, std::size_t options, std::size_t preferred);
  struct Site {
    std::string key;
    std::size_t options;
  };
  const std::vector<Site>& sites() const { return sites_; }

  /// What an op refuses of its operands: a finding for each violation. The outputs to go on with if the repair that is
  /// chosen is not one of an operand; else each operand's assumed layout is left in the program, and nothing is returned.
  std::vector<Layout> refuse(const Node& node, const std::vector<PlacementViolation>& violations,
                             const std::vector<int>& inputs, const Module* consumer, Phase phase);
  /// A step that fits its input: what comes out, unless the search for the cause of other findings finds that ranks should
  /// hold other tokens after it: all of them instead of their own, or the other way round. That is then the finding.
  Layout fitting(const Layout& out, const std::vector<CollectiveStep>& steps, std::size_t step,
                 const std::string& point, const std::string& tap, int input);
  /// A step that doesn't fit its input: the layout to go on with.
  Layout misplaced(const StepPlaced& placed, const std::vector<CollectiveStep>& steps,
                   std::size_t step, const std::string& point, int input);
  void add(Finding finding) { add(std::move(finding), ""); }

  /// The plan's entry that puts `step` behind a value: at its module's output, or at the input of the module that reads it.
  std::string step_fix(const std::string& tap, const CollectiveStep& step, const Module* consumer,
                       Phase phase) const;

 private:
  void add(Finding finding, const std::string& cause);
  std::string fix_text(const std::string& fix, int value, const Placement& required, int axis,
                       const Module* consumer, Phase phase) const;
  /// The module whose weight decides how a value's features are cut; null where none does.
  const Module* maker_of(int value, Phase phase) const;
  Value& value(int index) { return program_.values[static_cast<std::size_t>(index)]; }

  Program& program_;
  const PartitionCheck& partitions_;
  const RepairChoices& choices_;
  bool cuts_rows_ = false;  // some step of the plan cuts or joins tokens
  std::set<int> broken_;
  std::vector<Site> sites_;
  std::unordered_set<std::string> known_;  // findings and sites
};

/// A path with `*` for its layer number.
std::string any_layer(const std::string& path);

}  // namespace shardcheck
