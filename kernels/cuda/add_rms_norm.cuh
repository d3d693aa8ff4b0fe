// SPDX-License-Identifier: Apache-2.0
// The residual addition and the norm behind it in one kernel. The norm reads the sum as it was stored, rounded, so both
// outputs have the bits that add and rms_norm give.
#pragma once

#include <cstdint>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace shardcheck::gpu {

/// sum = a + b, out = rms_norm(sum). A thread reads back only what it has written itself.
///                                                                           a, b, sum, out [M, D]  weight [1, D]
template <bool kAligned, typename T, typename Out>
__global__ void __launch_bounds__(kMostThreads)
    add_rms_norm_rows(View<const T> a, View<const T> b, View<const T> weight, Accumulate<T> eps,
                      View<T> sum, View<Out> out) {
  constexpr int kCount = kPackOf<T>;
  SHARED_ARRAY(Accumulate<T>, of_warps, kMostWarps);
  for (std::int64_t row = blockIdx.x; row < sum.rows; row += gridDim.x) {
    for (std::int64_t col = std::int64_t{threadIdx.x} * kCount; col < sum.cols;
         col += std::int64_t{blockDim.x} * kCount) {
      const Pack<T, kCount> left = load_pack<kCount, kAligned>(a, row, col);
      const Pack<T, kCount> right = load_pack<kCount, kAligned>(b, row, col);
      Pack<T, kCount> result;
      for (int i = 0; i < kCount; ++i)
        result.values[i] = Add<T, T>{}(left.values[i], right.values[i]);
      store_pack<kCount, kAligned>(result, sum, row, col);
    }
    const Accumulate<T> scale = rms_scale<kAligned>(sum, row, eps, of_warps);
    scale_row<kAligned>(sum, row, scale, weight, out);
  }
}

void add_rms_norm(cudaStream_t stream, const Tensor& a, const Tensor& b, const Tensor& weight,
                  double eps, const Tensor& sum, const Tensor& out) {
  with_types(a, out, [&]<typename T, typename Out>(T, Out) {
    const auto [grid, block] = cover_rows(sum.rows, sum.cols, kPackOf<T>);
    const bool aligned = packs({&a, &b, &weight, &sum, &out}, kPackOf<T>);
    launch(aligned ? add_rms_norm_rows<true, T, Out> : add_rms_norm_rows<false, T, Out>,
           {"add_rms_norm", stream, grid, block}, view<const T>(a), view<const T>(b),
           view<const T>(weight), static_cast<Accumulate<T>>(eps), view<T>(sum), view<Out>(out));
  });
}

}  // namespace shardcheck::gpu
