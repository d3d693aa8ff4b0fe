// SPDX-License-Identifier: Apache-2.0
// Which stretch of a dimension each rank of one mesh axis owns: index ranges, never n / P.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardcheck {

/// Half-open range of element indices. May be empty.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
using Ranges = std::vector<Range>;

std::int64_t total(const Ranges& ranges);
std::string to_string(const Ranges& ranges);  // "[0,192)+[576,640)"
/// Sorted, adjacent ones joined, empty ones dropped.
Ranges normalized(Ranges ranges);
/// The parts of `whole` at the positions `inner` of its concatenation: an inner cut of an outer shard.
Ranges compose(const Ranges& whole, const Ranges& inner);
/// Where each part of `inner` (global indices) lies in the concatenation of `whole`: the inverse of compose.
/// Indices that `whole` lacks are left out.
Ranges locate(const Ranges& whole, const Ranges& inner);

/// What both have, and what `whole` has besides `taken`; both sorted (normalized).
Ranges intersection(const Ranges& a, const Ranges& b);
Ranges without(const Ranges& whole, const Range& taken);

/// Per rank of one axis, the ranges of a dimension of `extent` elements, in element indices.
class Partition {
 public:
  Partition() = default;
  Partition(std::int64_t extent, std::vector<Ranges> per_rank)
      : extent_(extent), per_rank_(std::move(per_rank)) {}

  /// Rank r gets floor(n/P) + (r < n mod P) consecutive units of `unit` elements; n = extent / unit.
  static Partition balanced(std::int64_t extent, int ranks, std::int64_t unit = 1);
  /// Pieces of ceil(n/P) units, as torch.chunk cuts: the last ranks may be short or empty.
  static Partition chunked(std::int64_t extent, int ranks, std::int64_t unit = 1);

  std::int64_t extent() const { return extent_; }
  int ranks() const { return static_cast<int>(per_rank_.size()); }
  const Ranges& of(int rank) const { return per_rank_[static_cast<std::size_t>(rank)]; }
  std::int64_t size(int rank) const { return total(of(rank)); }
  /// Empty when the ranges cover [0, extent) once; else a sentence naming the first gap, overlap or range outside.
  /// With `overlap_allowed` (kv heads) only gaps and outsiders count.
  std::string defect(bool overlap_allowed = false) const;
  bool operator==(const Partition&) const = default;

 private:
  std::int64_t extent_ = 0;
  std::vector<Ranges> per_rank_;
};

}  // namespace shardcheck
