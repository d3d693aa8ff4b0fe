// SPDX-License-Identifier: Apache-2.0
// Where a value's elements are: its placement on every mesh axis, and the ranges each rank holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharded/mesh.hpp"
#include "sharded/partition.hpp"

namespace shardcheck {

/// Activations are [tokens, features]; `vocab`, `head` and `kv_head` name the feature dimension by its unit.
enum class Dim { tokens, features };

/// On one mesh axis: replicated, sharded along a dimension, or partial (the value is the sum or max over the axis).
struct Placement {
  enum class Kind { R, S, P_sum, P_max };
  Kind kind = Kind::R;
  Dim dim = Dim::features;  // of S

  static Placement replicated() { return {}; }
  static Placement sharded(Dim dim) { return {Kind::S, dim}; }
  static Placement partial() { return {Kind::P_sum, Dim::features}; }
  bool is_partial() const { return kind == Kind::P_sum || kind == Kind::P_max; }
  bool operator==(const Placement& o) const { return kind == o.kind && (kind != Kind::S || dim == o.dim); }
};
std::string to_string(const Placement& placement);  // "R", "S(features)", "P(sum)"

/// One cut of a dimension by one axis. Tokens are cut balanced for every step's own count: no partition is kept.
struct Cut {
  int axis = 0;
  Dim dim = Dim::features;
  Partition partition;        // features only
  bool may_overlap = false;   // kv heads that several ranks need
  bool operator==(const Cut&) const = default;
};

/// Placement of a [tokens, features] value on a mesh.
struct Layout {
  std::int64_t features = 0;          // extent of the whole value
  std::vector<Placement> placements;  // one per mesh axis
  std::vector<Cut> cuts;              // outer first; exactly the axes placed S

  static Layout replicated(std::int64_t features, const Mesh& mesh);
  /// Global indices that a rank holds, in local order.
  Ranges feature_ranges(const Mesh& mesh, int rank) const;
  Ranges token_ranges(const Mesh& mesh, int rank, std::int64_t tokens) const;
  const Cut* cut_on(int axis) const;
  bool any_partial() const;
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout, const Mesh& mesh);  // "S(features)" or "tp: S(features), dp: R"

}  // namespace shardcheck
