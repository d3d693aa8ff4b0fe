// SPDX-License-Identifier: Apache-2.0
// The largest value of each row and its global column, where a rank owns ranges of the columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/pack.cuh"

namespace shardcheck::gpu {

/// Global columns [begin, end) are the local ones from `first` on.
struct OwnedColumns {
  std::int64_t begin, end, first;
};

inline constexpr int kMostColumnRanges = 32;  // by value in one launch
using ColumnList = Array<OwnedColumns, kMostColumnRanges>;

__device__ inline std::int64_t global_column(std::int64_t local, const ColumnList& owned) {
  for (int i = 0; i < owned.size; ++i) {
    const std::int64_t inside = local - owned[i].first;
    if (inside < owned[i].end - owned[i].begin) return owned[i].begin + inside;
  }
  return -1;
}

/// Calls body(columns, begin, end) for stretches of local columns [begin, end) of at most kMostColumnRanges ranges,
/// first to last; once without any where there are no columns.
template <typename Body>
void for_column_lists(OwnedRanges owned, Body body) {
  ColumnList list;
  std::int64_t begin = 0, end = 0;
  for (const auto& range : owned) {
    if (range.first == range.second) continue;
    if (list.size == kMostColumnRanges) {
      body(list, begin, end);
      list.size = 0;
      begin = end;
    }
    list.values[list.size++] = {range.first, range.second, end};
    end += range.second - range.first;
  }
  if (list.size > 0 || end == 0) body(list, begin, end);
}

template <typename A>
struct Best {
  A value = -std::numeric_limits<A>::infinity();
  std::int64_t index = -1;  // none yet
};

/// The larger value, of equal ones the lower index; NaN is larger than any number and equal to NaN.
template <typename A>
__device__ inline Best<A> better(const Best<A>& a, const Best<A>& b) {
  if (a.index < 0 || b.index < 0) return b.index < 0 ? a : b;
  const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
  const bool larger = b_nan ? !a_nan : b.value > a.value;
  const bool equal = b_nan ? a_nan : b.value == a.value;
  return larger || (equal && b.index < a.index) ? b : a;
}

template <typename A>
__device__ inline Best<A> warp_best(Best<A> best) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Best<A> other{__shfl_xor_sync(kAllLanes, best.value, offset),
                        __shfl_xor_sync(kAllLanes, best.index, offset)};
    best = better(best, other);
  }
  return best;
}

/// value, index = the best of each row; goes_on 1: and of what they hold. x begins at local column `first`.
///                                                                     x [M, columns of `owned`]   value, index [M, 1]
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kMostThreads)
    argmax_rows(View<const T> x, ColumnList owned, std::int64_t first, int goes_on,
                View<Accumulate<T>> value, View<std::int64_t> index) {
  using A = Accumulate<T>;
  constexpr int kCount = kPackOf<T>;
  SHARED_ARRAY(A, value_of, kMostWarps);
  SHARED_ARRAY(std::int64_t, index_of, kMostWarps);
  const int warps = static_cast<int>(blockDim.x) / kWarp, thread = static_cast<int>(threadIdx.x);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    Best<A> best;
    for (std::int64_t col = std::int64_t{thread} * kCount; col < x.cols;
         col += std::int64_t{blockDim.x} * kCount) {
      const auto pack = load_pack<kCount, kAligned>(x, row, col);
      for (int i = 0; i < kCount; ++i) {
        if (col + i < x.cols)
          best = better(best, {widen(pack.values[i]), global_column(first + col + i, owned)});
      }
    }
    best = warp_best(best);
    if (thread % kWarp == 0) {
      value_of[thread / kWarp] = best.value;
      index_of[thread / kWarp] = best.index;
    }
    __syncthreads();
    if (thread == 0) {
      if (goes_on != 0) best = better(best, {value(row, 0), index(row, 0)});
      for (int warp = 1; warp < warps; ++warp)
        best = better(best, {value_of[warp], index_of[warp]});
      value(row, 0) = best.value;
      index(row, 0) = best.index;
    }
    __syncthreads();
  }
}

/// Any number of ranges: more than fit one launch go in several, each of which goes on from the last one's result.
void argmax(cudaStream_t stream, const Tensor& x, OwnedRanges owned, const Tensor& value,
            const Tensor& index) {
  with_storage_type(x.dtype, [&]<typename T>(T) {
    int goes_on = 0;
    for_column_lists(owned, [&](const ColumnList& list, std::int64_t begin, std::int64_t end) {
      const Tensor part = x.col_range(begin, end);
      const dim3 grid(static_cast<unsigned>(std::min(kMostBlocks, x.rows)));
      const dim3 block(threads_for((end - begin + kPackOf<T> - 1) / kPackOf<T>));
      launch(packs(part, kPackOf<T>) ? argmax_rows<true, T> : argmax_rows<false, T>,
             {"argmax", stream, grid, block}, view<const T>(part), list, begin, goes_on,
             view<Accumulate<T>>(value), view<std::int64_t>(index));
      goes_on = 1;
    });
  });
}

}  // namespace shardcheck::gpu
