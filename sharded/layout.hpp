// SPDX-License-Identifier: Apache-2.0
// Where a value's elements are: its placement on every mesh axis, and the ranges each rank holds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.hpp"
#include "sharded/mesh.hpp"
#include "sharded/partition.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

/// Activations are [tokens, features]; `vocab`, `head` and `kv_head` name the feature dimension by its unit. Rows are
/// cut by tokens (balanced, anew in every step) or by sequences (whole ones; sequence s stays on one rank).
/// Communicators know rows and columns only: for them rows are `tokens`.
enum class Dim { tokens, features, sequences };

/// Rows or columns [begin, end) of a tensor: the same storage, nothing is moved.
inline Tensor range_of(const Tensor& tensor, Dim dim, const Range& range) {
  return dim == Dim::features ? tensor.col_range(range.begin, range.end)
                              : tensor.row_range(range.begin, range.end);
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
  bool cuts_features() const { return kind == Kind::S && dim == Dim::features; }
  bool cuts_rows() const { return kind == Kind::S && dim != Dim::features; }
  bool operator==(const Placement& o) const {
    return kind == o.kind && (kind != Kind::S || dim == o.dim);
  }
};
std::string to_string(const Placement& placement);  // "R", "S(features)", "S(sequence)", "P(sum)"

/// Placement of a [tokens, features] value on a mesh. Features are cut by explicit ranges per rank; which rows a rank
/// holds follows from each step's own list of sequences, so only the axes that cut them are kept.
struct Layout {
  std::int64_t features = 0;          // extent of the whole value
  std::vector<Placement> placements;  // one per mesh axis
  std::vector<Ranges> owned;          // by rank of the mesh; empty: every rank holds all features
  std::vector<int> row_axes;          // axes placed S(tokens) or S(sequence), outer first
  bool may_overlap = false;           // kv heads that several ranks need

  static Layout replicated(std::int64_t features, const Mesh& mesh);
  /// Cut along features by one axis, replicated on the others.
  static Layout sharded(const Mesh& mesh, int axis, const Partition& partition,
                        bool may_overlap = false);
  /// Partial sums on one axis, replicated on the others.
  static Layout partial(std::int64_t features, const Mesh& mesh, int axis);

  /// Global indices that a rank holds, in local order.
  Ranges feature_ranges(int rank) const;
  std::int64_t local_features(int rank) const { return total(feature_ranges(rank)); }
  /// Rows of a step's activation that a rank holds. On an axis that cuts tokens it is the rank's balanced part of what
  /// the axes before it left; on one that cuts sequences the rows of sequence s go to rank s mod P of the axis, where
  /// several do, s / P counts for the next.
  Ranges row_ranges(const Mesh& mesh, int rank, const Step& step) const;
  /// True unless an axis that cuts sequences gives this one to another rank.
  bool holds_sequence(const Mesh& mesh, int rank, std::int64_t sequence) const;
  /// Positions of a sequence that a rank has in its cache after `steps`, if keys and values are placed like this: those
  /// whose rows it was the last to hold. Sequences that tokens don't cut begin at 0, in whatever steps they were given.
  Ranges kept_positions(const Mesh& mesh, int rank, std::span<const Step* const> steps,
                        std::int64_t sequence) const;
  /// Rows of what attention reads from the cache in the last of `steps` (its sequences' visible positions, one after
  /// the other) that a rank has kept, if the keys are placed like this.
  Ranges cache_ranges(const Mesh& mesh, int rank, std::span<const Step* const> steps,
                      std::int64_t window) const;
  bool any_partial() const;
  bool operator==(const Layout&) const = default;
};
std::string to_string(const Layout& layout, const Mesh& mesh);  // "S(features)" or "tp: S(features), dp: R"

}  // namespace shardcheck
