// SPDX-License-Identifier: Apache-2.0
// Private to candidates: puts a candidate together from tensors and the words that place them, wherever they come from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/candidate.hpp"

namespace shardcheck {

/// How a tap is placed, in the words of a manifest.
struct PlacementWords {
  std::string where;                                      // for messages: "taps.layers.*.mlp.act"
  std::vector<std::pair<std::string, std::string>> axes;  // "tp" -> "S(features)"
  /// Per rank of the mesh, element indices: of the features, or of a table's rows where its output is partial.
  std::optional<std::vector<Ranges>> ranges;
  std::optional<std::vector<Ranges>> rows{};  // of a table, where `ranges` are features
};

class CandidateBuilder {
 public:
  /// `origin` begins every message.
  CandidateBuilder(const Model& model, const Registry& ops, Mesh mesh, std::string origin);

  const Mesh& mesh() const { return mesh_; }
  TapRun& run() { return candidate_.run; }
  Sequences& sequences() { return candidate_.sequences; }
  /// Tokens [first, first + count) of each sequence, in the order of the run.
  void add_step(Phase phase, int index, const std::vector<StepSequence>& parts);

  /// False if the model has no such tap.
  bool knows(const std::string& tap) const { return features_of(tap).has_value(); }
  std::vector<std::string> known_taps() const;
  bool is_placed(const std::string& tap) const { return layouts_.find(tap) != layouts_.end(); }
  void place(const std::string& tap, const PlacementWords& words);
  const Layout& layout(const std::string& tap) const { return layouts_.at(tap); }
  /// Elements that the ranges of a tap number: its features, or the rows of a table whose output is partial. Throws
  /// InputError where there is neither.
  std::int64_t extent_of_ranges(const std::string& tap, const PlacementWords& words) const;
  /// Rows of the table whose output is partial. Throws InputError where the tap is no such output.
  std::int64_t extent_of_rows(const std::string& tap, const PlacementWords& words) const;
  /// False if the rank has this tap of this step already. Precondition: the tap is placed.
  bool store(StepTaps& step, const std::string& tap, int rank, HostTensor tensor);

  /// What was put together so far.
  Candidate candidate() const;

 private:
  [[noreturn]] void fail(const std::string& message) const;
  std::optional<std::int64_t> features_of(const std::string& tap) const;
  bool is_table(const std::string& module) const;
  void cut_kv_heads(Layout& layout, int axis) const;
  void place_rows(const std::string& tap, const std::string& where, const std::vector<Ranges>& rows,
                  std::int64_t extent);
  void check_whole(const std::string& where, const Ranges& joined, std::int64_t extent) const;
  void check_cover(const std::string& where, Layout& layout) const;
  std::vector<int> unique_shards(const Layout& layout) const;
  void order_taps(Candidate& candidate) const;

  const Model& model_;
  const Registry& ops_;
  const Mesh mesh_;
  const std::string origin_;
  std::map<std::string, std::int64_t, std::less<>> features_;  // of the whole value, by tap
  std::map<std::string, std::string, std::less<>> inputs_;     // of modules
  std::map<std::string, Layout, std::less<>> layouts_;
  TableRows table_rows_;
  Candidate candidate_;
};

}  // namespace shardcheck
