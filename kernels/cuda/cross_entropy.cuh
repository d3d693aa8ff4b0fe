// SPDX-License-Identifier: Apache-2.0
// Softmax cross-entropy over a vocabulary that is cut: the statistics of one shard, their merge, and the loss.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/argmax.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/block_reduce.cuh"

namespace shardcheck::gpu {

/// The largest over the block, in every thread; NaN is passed over. As block_sum.
template <typename A, typename Shared>
__device__ inline A block_max(A x, Shared& of_warps) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    x = larger(x, __shfl_xor_sync(kAllLanes, x, offset));
  if (warps == 1) return x;
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  A highest = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) {
    const A other = of_warps[warp];
    highest = larger(highest, other);
  }
  __syncthreads();
  return highest;
}

/// max and sum of exp(x - max), in two passes over the row.                           logits [M, V_r]   max, sum [M, 1]
template <bool kAligned, typename T>
__global__ void __launch_bounds__(kMostThreads)
    softmax_statistics(View<const T> logits, View<Accumulate<T>> max, View<Accumulate<T>> sum) {
  using A = Accumulate<T>;
  constexpr int kCount = kPackOf<T>;
  SHARED_ARRAY(A, of_warps, kMostWarps);
  const std::int64_t start = std::int64_t{threadIdx.x} * kCount,
                     step = std::int64_t{blockDim.x} * kCount;
  for (std::int64_t row = blockIdx.x; row < logits.rows; row += gridDim.x) {
    A highest = kMinusInfinity<A>;
    for (std::int64_t col = start; col < logits.cols; col += step) {
      const auto pack = load_pack<kCount, kAligned>(logits, row, col);
      for (int i = 0; i < kCount; ++i) {
        if (col + i < logits.cols) highest = larger(highest, widen(pack.values[i]));
      }
    }
    highest = block_max(highest, of_warps);
    const A shift = highest == kMinusInfinity<A>
                        ? A{0}
                        : highest;  // exp(-inf - 0) is 0, where -inf - -inf were NaN
    A total = A{0};
    for (std::int64_t col = start; col < logits.cols; col += step) {
      const auto pack = load_pack<kCount, kAligned>(logits, row, col);
      for (int i = 0; i < kCount; ++i) {
        if (col + i < logits.cols) total += std::exp(widen(pack.values[i]) - shift);
      }
    }
    total = block_sum(total, of_warps);
    if (threadIdx.x == 0) {
      max(row, 0) = highest;
      sum(row, 0) = total;
    }
  }
}

/// target = the logit of each row's target, and 0 where clears is 1 and no range holds it.
///                                                             logits [M, V_r]   targets [1, M]   target [M, 1]
template <typename T>
__global__ void target_logits(View<const T> logits, View<const std::int64_t> targets,
                              ColumnList owned, int clears, View<Accumulate<T>> target) {
  for (std::int64_t row = grid_first_x(); row < logits.rows; row += grid_step_x()) {
    const std::int64_t wanted = targets(0, row);
    std::int64_t col = -1;
    for (int i = 0; i < owned.size && col < 0; ++i) {
      if (wanted >= owned[i].begin && wanted < owned[i].end)
        col = owned[i].first + wanted - owned[i].begin;
    }
    if (col >= 0) {
      target(row, 0) = widen(logits(row, col));
    } else if (clears != 0) {
      target(row, 0) = Accumulate<T>{0};
    }
  }
}

/// into = merge of into and other.                                                               all [M, 1]
template <typename A>
__global__ void merge_cross_entropy(View<const A> other_max, View<const A> other_sum,
                                    View<const A> other_target, View<A> max, View<A> sum,
                                    View<A> target) {
  for (std::int64_t row = grid_first_x(); row < max.rows; row += grid_step_x()) {
    const A ours = max(row, 0), theirs = other_max(row, 0), highest = larger(ours, theirs);
    max(row, 0) = highest;
    sum(row, 0) = sum(row, 0) * exp_diff(ours, highest) + other_sum(row, 0) * exp_diff(theirs, highest);
    target(row, 0) += other_target(row, 0);
  }
}

/// loss = log(sum) + max - target.                                                               all [M, 1]
template <typename A>
__global__ void cross_entropy_loss(View<const A> max, View<const A> sum, View<const A> target,
                                   View<A> loss) {
  for (std::int64_t row = grid_first_x(); row < loss.rows; row += grid_step_x()) {
    loss(row, 0) = std::log(sum(row, 0)) + max(row, 0) - target(row, 0);
  }
}

/// Any number of ranges, in several launches where they don't fit one.
void cross_entropy_partial(cudaStream_t stream, const Tensor& logits, const Tensor& targets,
                           OwnedRanges owned, const CrossEntropyState& out) {
  with_storage_type(logits.dtype, [&]<typename T>(T) {
    using A = Accumulate<T>;
    const dim3 grid(static_cast<unsigned>(std::min(kMostBlocks, logits.rows)));
    const dim3 block(threads_for((logits.cols + kPackOf<T> - 1) / kPackOf<T>));
    launch(packs(logits, kPackOf<T>) ? softmax_statistics<true, T> : softmax_statistics<false, T>,
           {"cross_entropy_partial", stream, grid, block}, view<const T>(logits), view<A>(out.max),
           view<A>(out.sum));
    const Cover tokens = cover(1, logits.rows);
    int clears = 1;
    for_column_lists(owned, [&](const ColumnList& list, std::int64_t, std::int64_t) {
      launch(target_logits<T>, {"cross_entropy_partial", stream, tokens.grid, tokens.block},
             view<const T>(logits), view<const std::int64_t>(targets), list, clears,
             view<A>(out.target));
      clears = 0;
    });
  });
}

void cross_entropy_merge(cudaStream_t stream, const CrossEntropyState& other,
                         const CrossEntropyState& into) {
  const Cover tokens = cover(1, into.max.rows);
  const auto merge = [&]<typename A>(A) {
    launch(merge_cross_entropy<A>, {"cross_entropy_merge", stream, tokens.grid, tokens.block},
           view<const A>(other.max), view<const A>(other.sum), view<const A>(other.target),
           view<A>(into.max), view<A>(into.sum), view<A>(into.target));
  };
  if (into.max.dtype == DType::f64) return merge(double{});
  merge(float{});
}

void cross_entropy_finish(cudaStream_t stream, const CrossEntropyState& state, const Tensor& loss) {
  const Cover tokens = cover(1, loss.rows);
  const auto finish = [&]<typename A>(A) {
    launch(cross_entropy_loss<A>, {"cross_entropy_finish", stream, tokens.grid, tokens.block},
           view<const A>(state.max), view<const A>(state.sum), view<const A>(state.target),
           view<A>(loss));
  };
  if (loss.dtype == DType::f64) return finish(double{});
  finish(float{});
}

}  // namespace shardcheck::gpu
