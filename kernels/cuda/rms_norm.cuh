// SPDX-License-Identifier: Apache-2.0
// One block per row, two passes: the mean square, then the scaled row.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

/// The sum of squares of one row, in every thread of the block.                                   x [M, D]
template <bool kAligned, typename A, typename T, typename Shared>
__device__ inline A squares_of_row(const View<T>& x, std::int64_t row, Shared& of_warps) {
  constexpr int kCount = kPackOf<T>;
  A squares = 0;
  for (std::int64_t col = std::int64_t{threadIdx.x} * kCount; col < x.cols;
       col += std::int64_t{blockDim.x} * kCount) {
    const auto pack = load_pack<kCount, kAligned>(x, row, col);
    for (int i = 0; i < kCount; ++i) {
      const A value = widen(pack.values[i]);
      squares = std::fma(value, value, squares);
    }
  }
  return block_sum(squares, of_warps);
}

template <typename A>
__device__ inline A rms_scale(A squares, std::int64_t features, A eps) {
  return A{1} / std::sqrt(squares / static_cast<A>(features) + eps);
}

/// 1 / sqrt(mean of squares + eps) of one row, in every thread of the block.                      x [M, D]
template <bool kAligned, typename T, typename A, typename Shared>
__device__ inline A rms_scale(const View<T>& x, std::int64_t row, A eps, Shared& of_warps) {
  return rms_scale(squares_of_row<kAligned, A>(x, row, of_warps), x.cols, eps);
}

/// out = x scale weight for one row.                                                     x, out [M, D]  weight [1, D]
template <bool kAligned, typename T, typename X, typename Out>
__device__ inline void scale_row(const View<X>& x, std::int64_t row, Accumulate<T> scale,
                                 const View<const T>& weight, const View<Out>& out) {
  constexpr int kCount = kPackOf<T>;
  for (std::int64_t col = std::int64_t{threadIdx.x} * kCount; col < x.cols;
       col += std::int64_t{blockDim.x} * kCount) {
    const auto values = load_pack<kCount, kAligned>(x, row, col);
    const Pack<T, kCount> weights = load_pack<kCount, kAligned>(weight, 0, col);
    Pack<Out, kCount> result;
    for (int i = 0; i < kCount; ++i) {
      result.values[i] = narrow<Out>(widen(values.values[i]) * scale * widen(weights.values[i]));
    }
    store_pack<kCount, kAligned>(result, out, row, col);
  }
}

template <bool kAligned, typename T, typename Out>
__global__ void __launch_bounds__(kMostThreads)
    rms_norm_rows(View<const T> x, View<const T> weight, Accumulate<T> eps, View<Out> out) {
  SHARED_ARRAY(Accumulate<T>, of_warps, kMostWarps);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const Accumulate<T> scale = rms_scale<kAligned>(x, row, eps, of_warps);
    scale_row<kAligned>(x, row, scale, weight, out);
  }
}

/// A block for each of these rows, of as many threads as their length asks for.
inline Cover cover_rows(std::int64_t rows, std::int64_t cols, int pack) {
  return {dim3(static_cast<unsigned>(std::min(kMostBlocks, rows))),
          dim3(threads_for((cols + pack - 1) / pack))};
}

/// out = x / sqrt(mean(x^2) + eps) * weight.                                             x, out [M, D]  weight [1, D]
void rms_norm(cudaStream_t stream, const Tensor& x, const Tensor& weight, double eps,
              const Tensor& out) {
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    const auto [grid, block] = cover_rows(x.rows, x.cols, kPackOf<T>);
    launch(packs({&x, &weight, &out}, kPackOf<T>) ? rms_norm_rows<true, T, Out>
                                                  : rms_norm_rows<false, T, Out>,
           {"rms_norm", stream, grid, block}, view<const T>(x), view<const T>(weight),
           static_cast<Accumulate<T>>(eps), view<Out>(out));
  });
}

}  // namespace shardcheck::gpu
