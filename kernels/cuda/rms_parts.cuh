// SPDX-License-Identifier: Apache-2.0
// RMSNorm in two kernels, for rows that several ranks hold in parts: the sum of squares of what a rank has, and the
// norm of that once the sum over all ranks is known. One block per row.
#pragma once

#include <cstdint>

#include "kernels/cuda/rms_norm.cuh"

namespace shardcheck::gpu {

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kMostThreads)
    square_sum_rows(View<const T> x, View<Accumulate<T>> out) {
  SHARED_ARRAY(Accumulate<T>, of_warps, kMostWarps);
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x) {
    const auto squares = squares_of_row<kAligned, Accumulate<T>>(x, row, of_warps);
    if (threadIdx.x == 0) out(row, 0) = squares;
  }
}

template <bool kAligned, typename T, typename Out>
__global__ void __launch_bounds__(kMostThreads)
    rms_apply_rows(View<const T> x, View<const T> weight, View<const Accumulate<T>> squares,
                   std::int64_t features, Accumulate<T> eps, View<Out> out) {
  for (std::int64_t row = blockIdx.x; row < x.rows; row += gridDim.x)
    scale_row<kAligned>(x, row, rms_scale(squares(row, 0), features, eps), weight, out);
}

/// out = sum of x^2 over the columns.                                                         x [M, n]  out [M, 1]
void square_sum(cudaStream_t stream, const Tensor& x, const Tensor& out) {
  with_storage_type(x.dtype, [&]<typename T>(T) {
    const auto [grid, block] = cover_rows(x.rows, x.cols, kPackOf<T>);
    launch(packs(x, kPackOf<T>) ? square_sum_rows<true, T> : square_sum_rows<false, T>,
           {"square_sum", stream, grid, block}, view<const T>(x), view<Accumulate<T>>(out));
  });
}

/// out = x / sqrt(squares / features + eps) * weight.              x, out [M, n]  weight [1, n]  squares [M, 1]
void rms_apply(cudaStream_t stream, const Tensor& x, const Tensor& weight, const Tensor& squares,
               std::int64_t features, double eps, const Tensor& out) {
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    const auto [grid, block] = cover_rows(x.rows, x.cols, kPackOf<T>);
    launch(packs({&x, &weight, &out}, kPackOf<T>) ? rms_apply_rows<true, T, Out>
                                                  : rms_apply_rows<false, T, Out>,
           {"rms_apply", stream, grid, block}, view<const T>(x), view<const T>(weight),
           view<const Accumulate<T>>(squares), features, static_cast<Accumulate<T>>(eps),
           view<Out>(out));
  });
}

}  // namespace shardcheck::gpu
