// SPDX-License-Identifier: Apache-2.0
// Rotates the pairs of every head. A thread keeps the angles of its pairs and goes through the heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

/// (a, b) turned by an angle.
template <typename A>
struct Turned {
  A first, second;
};
template <typename A>
__device__ inline Turned<A> turn(A a, A b, A cos, A sin) {
  return {std::fma(a, cos, -(b * sin)), std::fma(b, cos, a * sin)};
}

/// Blocks are as wide as half a head and as high as there are heads; one row of x after the other.
/// kCount pairs at once: of two stretches half a head apart, or of one stretch of neighbours.
///                                                                  x, out [M, heads * 2 half]  cos, sin [M, half]
template <int kCount, bool kInterleaved, typename T, typename Out>
__global__ void rope_rows(View<const T> x, View<const Accumulate<T>> cos,
                          View<const Accumulate<T>> sin, View<Out> out) {
  using A = Accumulate<T>;
  constexpr bool kAligned = kCount > 1;
  const std::int64_t half = cos.cols, heads = x.cols / (2 * half);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    for (std::int64_t pair = std::int64_t{threadIdx.x} * kCount; pair < half;
         pair += std::int64_t{blockDim.x} * kCount) {
      const Pack<A, kCount> c = load_pack<kCount, kAligned>(cos, row, pair),
                            s = load_pack<kCount, kAligned>(sin, row, pair);
      for (std::int64_t head = grid_first_y(); head < heads; head += grid_step_y()) {
        // First members of pairs stand at `begin` on; second ones behind each, or half a head on.
        const std::int64_t begin = head * 2 * half + (kInterleaved ? 2 * pair : pair);
        const std::int64_t next = begin + (kInterleaved ? kCount : half);
        const Pack<T, kCount> left = load_pack<kCount, kAligned>(x, row, begin);
        const Pack<T, kCount> right = load_pack<kCount, kAligned>(x, row, next);
        Pack<Out, kCount> out_left, out_right;
        for (int i = 0; i < kCount; ++i) {
          if constexpr (kInterleaved && kCount > 1) {
            const auto& from = i < kCount / 2 ? left : right;
            auto& to = i < kCount / 2 ? out_left : out_right;
            const int at = 2 * i % kCount;
            const Turned<A> turned = turn<A>(widen(from.values[at]), widen(from.values[at + 1]),
                                             c.values[i], s.values[i]);
            to.values[at] = narrow<Out>(turned.first);
            to.values[at + 1] = narrow<Out>(turned.second);
          } else {
            const Turned<A> turned = turn<A>(widen(left.values[i]), widen(right.values[i]),
                                             c.values[i], s.values[i]);
            out_left.values[i] = narrow<Out>(turned.first);
            out_right.values[i] = narrow<Out>(turned.second);
          }
        }
        store_pack<kCount, kAligned>(out_left, out, row, begin);
        store_pack<kCount, kAligned>(out_right, out, row, next);
      }
    }
  }
}

void rope(cudaStream_t stream, const Tensor& x, const Tensor& cos, const Tensor& sin,
          std::int64_t head_dim, RopeConvention convention, const Tensor& out) {
  const std::int64_t half = head_dim / 2, heads = x.cols / head_dim;
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    using A = Accumulate<T>;
    constexpr int kMany = std::min(kPackOf<T>, 4);  // more would fill the registers
    const bool many = half % kMany == 0 && packs({&x, &cos, &sin, &out}, kMany);
    const auto [grid, block] = cover(heads, many ? half / kMany : half);
    const dim3 rows_and_heads(static_cast<unsigned>(std::min(kMostBlocks, x.rows)), grid.y);
    const auto pick = [&](auto many_pairs, auto one_pair) { return many ? many_pairs : one_pair; };
    const auto kernel = convention == RopeConvention::interleaved
                            ? pick(rope_rows<kMany, true, T, Out>, rope_rows<1, true, T, Out>)
                            : pick(rope_rows<kMany, false, T, Out>, rope_rows<1, false, T, Out>);
    launch(kernel, {"rope", stream, rows_and_heads, block}, view<const T>(x), view<const A>(cos),
           view<const A>(sin), view<Out>(out));
  });
}

}  // namespace shardcheck::gpu
