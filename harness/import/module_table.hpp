// SPDX-License-Identifier: Apache-2.0
// The modules that an imported rule may mean: those of one model, or those of every family that is known here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/import/imported_rule.hpp"
#include "model/model.hpp"

namespace shardcheck {

/// A module of all layers: "layers.*.self_attn.q_proj".
struct KnownModule {
  std::string pattern;
  Module sample;                     // of the first layer
  std::vector<std::int64_t> layers;  // of the model; empty: outside the blocks, or no model
};

/// A block of modules that has a name of its own: "layers.*.mlp". `first` reads its input, `last` makes its output.
struct KnownBlock {
  std::string pattern;
  const KnownModule* first;
  const KnownModule* last;
};

/// A module that a rule means, with the pattern that names it and those of its layers that are meant.
struct SelectedModule {
  const KnownModule* module;
  std::string pattern;
  std::vector<std::int64_t> layers;
};

class ModuleTable {
 public:
  static ModuleTable of(const Model& model);
  /// Of the families that reference/ and sharded/ know, whichever it may be.
  static ModuleTable of_all_families();
  ModuleTable(const ModuleTable&) = delete;  // blocks point into modules
  ModuleTable(ModuleTable&&) = default;

  bool of_one_model() const { return of_one_model_; }
  const std::vector<KnownModule>& modules() const { return modules_; }
  std::vector<SelectedModule> select(const ImportedRule& rule) const;
  /// With the layer that `pattern` names in place of `*`.
  std::vector<SelectedModule> ends_of_block(std::string_view pattern, bool first) const;
  /// Modules of the block of `module` whose outputs it computes from, all elementwise or head by head between.
  std::vector<const KnownModule*> producers(const KnownModule& module) const;
  /// The known name nearest to a pattern.
  std::string nearest(std::string_view pattern) const;

 private:
  ModuleTable() = default;
  void add(const std::vector<Module>& modules);
  void add_blocks();

  bool of_one_model_ = false;
  std::vector<KnownModule> modules_;
  std::vector<KnownBlock> blocks_;
};

}  // namespace shardcheck
