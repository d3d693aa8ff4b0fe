// SPDX-License-Identifier: Apache-2.0
// out = f(x) and out = f(a, b), element by element: the kernel of every op whose outputs depend on one column each.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/pack.cuh"

namespace shardcheck::gpu {

/// out(m, i) = f(x(m, i)).                                                                        x, out [M, D]
template <int kCount, typename F, typename In, typename Out>
__global__ void map_one(View<const In> x, View<Out> out, F f) {
  constexpr bool kAligned = kCount > 1;
  for (std::int64_t row = grid_first_y(); row < out.rows; row += grid_step_y()) {
    for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
      const Pack<In, kCount> in = load_pack<kCount, kAligned>(x, row, col);
      Pack<Out, kCount> result;
      for (int i = 0; i < kCount; ++i) result.values[i] = f(in.values[i]);
      store_pack<kCount, kAligned>(result, out, row, col);
    }
  }
}

/// out(m, i) = f(a(m, i), b(m, i)).                                                               a, b, out [M, D]
template <int kCount, typename F, typename In, typename Out>
__global__ void map_two(View<const In> a, View<const In> b, View<Out> out, F f) {
  constexpr bool kAligned = kCount > 1;
  for (std::int64_t row = grid_first_y(); row < out.rows; row += grid_step_y()) {
    for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
      const Pack<In, kCount> left = load_pack<kCount, kAligned>(a, row, col);
      const Pack<In, kCount> right = load_pack<kCount, kAligned>(b, row, col);
      Pack<Out, kCount> result;
      for (int i = 0; i < kCount; ++i) result.values[i] = f(left.values[i], right.values[i]);
      store_pack<kCount, kAligned>(result, out, row, col);
    }
  }
}

/// The same tensors as one row each, if all are contiguous: rows of any length then move in packs.
template <std::size_t kTensors>
std::array<Tensor, kTensors> flattened(std::array<Tensor, kTensors> tensors) {
  for (const Tensor& tensor : tensors) {
    if (!tensor.contiguous()) return tensors;
  }
  for (Tensor& tensor : tensors) {
    tensor.cols = tensor.elements();
    tensor.rows = 1;
    tensor.row_stride = tensor.cols;
  }
  return tensors;
}

/// In and Out: the tensors' element types, or integers as wide where F moves bits.
template <typename In, typename Out, typename F>
void map(const char* name, cudaStream_t stream, const Tensor& x, const Tensor& out, F f) {
  constexpr int kMany = kPackOf<In>;
  const auto [from, to] = flattened<2>({x, out});
  const bool many = packs({&from, &to}, kMany);
  const auto [grid, block] = cover(to.rows, many ? (to.cols + kMany - 1) / kMany : to.cols);
  launch(many ? map_one<kMany, F, In, Out> : map_one<1, F, In, Out>, {name, stream, grid, block},
         view<const In>(from), view<Out>(to), f);
}

template <typename In, typename Out, typename F>
void map(const char* name, cudaStream_t stream, const Tensor& a, const Tensor& b, const Tensor& out,
         F f) {
  constexpr int kMany = kPackOf<In>;
  const auto [left, right, to] = flattened<3>({a, b, out});
  const bool many = packs({&left, &right, &to}, kMany);
  const auto [grid, block] = cover(to.rows, many ? (to.cols + kMany - 1) / kMany : to.cols);
  launch(many ? map_two<kMany, F, In, Out> : map_two<1, F, In, Out>, {name, stream, grid, block},
         view<const In>(left), view<const In>(right), view<Out>(to), f);
}

/// Calls body(T{}, Out{}) for x in storage type T and out in T or Accumulate<T>.
template <typename Body>
void with_types(const Tensor& x, const Tensor& out, Body&& body) {
  with_storage_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    if (out.dtype == x.dtype) {
      body(T{}, T{});
    } else {
      body(T{}, Accumulate<T>{});
    }
  });
}

}  // namespace shardcheck::gpu
