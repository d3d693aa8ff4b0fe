// SPDX-License-Identifier: Apache-2.0
// Where a value's elements are: its placement on every mesh axis, and the ranges each rank holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor.hpp"
#include "sharded/mesh.hpp"
#include "sharded/partition.hpp"

namespace shardcheck {

/// Activations are [tokens, features]; `vocab`, `head` and `kv_head` name the feature dimension by its unit.
enum class Dim { tokens, features };

/// Rows or columns [begin, end) of a tensor: the same storage, nothing is moved.
inline Tensor range_of(const Tensor& tensor, Dim dim, const Range& range) {
  return dim == Dim::tokens ? tensor.row_range(range.begin, range.end)
                            : tensor.col_range(range.begin, range.end);
}

/// On one mesh axis: replicated, sharded along a dimension, or partial (the value is the sum or max over the axis).
struct Placement {
  enum class Kind { R, S, P_sum, P_max };
  Kind kind = Kind::R;
  Dim dim = Dim::features;  // of S

  static Placement replicated() { return {}; }
  static Placement sharded(Dim dim) { return {Kind::S, dim}; }
  static Placement partial() { return {Kind::P_sum, Dim::features}; }
  bool is_partial() const { return kind == Kind::P_sum || kind == Kind::P_max; }
  bool operator==(const Placement& o) const {
    return kind == o.kind && (kind != Kind::S || dim == o.dim);
  }
};
std::string to_string(const Placement& placement);  // "R", "S(features)", "P(sum)"

/// Placement of a [tokens, features] value on a mesh. Features are cut by explicit ranges per rank; tokens are cut
/// balanced, anew for every step's own count, so only the axes that cut them are kept.
struct Layout {
  std::int64_t features = 0;          // extent of the whole value
  std::vector<Placement> placements;  // one per mesh axis
  std::vector<Ranges> owned;          // by rank of the mesh; empty: every rank holds all features
  std::vector<int> token_axes;        // axes placed S(tokens), outer first
  bool may_overlap = false;           // kv heads that several ranks need

  static Layout replicated(std::int64_t features, const Mesh& mesh);
  /// Cut along features by one axis, replicated on the others.
  static Layout sharded(const Mesh& mesh, int axis, const Partition& partition,
                        bool may_overlap = false);
  /// Partial sums on one axis, replicated on the others.
  static Layout partial(std::int64_t features, const Mesh& mesh, int axis);

  /// Global indices that a rank holds, in local order.
  Ranges feature_ranges(int rank) const;
  Ranges token_ranges(const Mesh& mesh, int rank, std::int64_t tokens) const;
  std::int64_t local_features(int rank) const { return total(feature_ranges(rank)); }
  bool any_partial() const;
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout, const Mesh& mesh);  // "S(features)" or "tp: S(features), dp: R"

}  // namespace shardcheck
