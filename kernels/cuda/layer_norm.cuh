// SPDX-License-Identifier: Apache-2.0
// One block per row, two passes for the statistics: the mean, then the mean square of what is left without it.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/rms_norm.cuh"

namespace shardcheck::gpu {

/// out = (x - mean) / sqrt(var + eps) * weight + bias.                       x, out [M, D]  weight, bias [1, D]
template <bool kAligned, typename T, typename Out>
__global__ void __launch_bounds__(kMostThreads)
    layer_norm_rows(View<const T> x, View<const T> weight, View<const T> bias, Accumulate<T> eps,
                    View<Out> out) {
  using A = Accumulate<T>;
  constexpr int kCount = kPackOf<T>;
  SHARED_ARRAY(A, of_warps, kMostWarps);
  const std::int64_t first = std::int64_t{threadIdx.x} * kCount,
                     step = std::int64_t{blockDim.x} * kCount;
  const A count = static_cast<A>(x.cols);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    A sum = 0;
    for (std::int64_t col = first; col < x.cols; col += step) {
      const Pack<T, kCount> values = load_pack<kCount, kAligned>(x, row, col);
      for (int i = 0; i < kCount; ++i) sum += widen(values.values[i]);
    }
    const A mean = block_sum(sum, of_warps) / count;
    A squares = 0;
    for (std::int64_t col = first; col < x.cols; col += step) {
      const Pack<T, kCount> values = load_pack<kCount, kAligned>(x, row, col);
      for (int i = 0; i < kCount && col + i < x.cols; ++i) {
        const A centred = widen(values.values[i]) - mean;
        squares = std::fma(centred, centred, squares);
      }
    }
    const A scale = A{1} / std::sqrt(block_sum(squares, of_warps) / count + eps);
    for (std::int64_t col = first; col < x.cols; col += step) {
      const Pack<T, kCount> values = load_pack<kCount, kAligned>(x, row, col);
      const Pack<T, kCount> weights = load_pack<kCount, kAligned>(weight, 0, col);
      const Pack<T, kCount> biases = load_pack<kCount, kAligned>(bias, 0, col);
      Pack<Out, kCount> result;
      for (int i = 0; i < kCount; ++i) {
        const A scaled = (widen(values.values[i]) - mean) * scale;
        result.values[i] = narrow<Out>(
            std::fma(scaled, A{widen(weights.values[i])}, A{widen(biases.values[i])}));
      }
      store_pack<kCount, kAligned>(result, out, row, col);
    }
  }
}

void layer_norm(cudaStream_t stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                double eps, const Tensor& out) {
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    const auto [grid, block] = cover_rows(x.rows, x.cols, kPackOf<T>);
    const bool aligned = packs({&x, &weight, &bias, &out}, kPackOf<T>);
    launch(aligned ? layer_norm_rows<true, T, Out> : layer_norm_rows<false, T, Out>,
           {"layer_norm", stream, grid, block}, view<const T>(x), view<const T>(weight),
           view<const T>(bias), static_cast<Accumulate<T>>(eps), view<Out>(out));
  });
}

}  // namespace shardcheck::gpu
