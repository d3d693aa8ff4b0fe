// SPDX-License-Identifier: Apache-2.0
// Fills memory with what no computation may use: quiet NaN, or the largest integer.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cuda/copy.cuh"

namespace shardcheck::gpu {

inline std::uint64_t poison_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 0x7ff8000000000000u;
    case DType::f32:
      return 0x7fc00000u;
    case DType::bf16:
      return 0x7fc0u;
    case DType::f16:
      return 0x7e00u;
    case DType::i64:
      return static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    default:
      return std::numeric_limits<std::uint64_t>::max();
  }
}

template <int kCount, typename Word>
__global__ void fill(View<Word> out, Word bits) {
  Pack<Word, kCount> pack;
  for (int i = 0; i < kCount; ++i) pack.values[i] = bits;
  for (std::int64_t row = grid_first_y(); row < out.rows; row += grid_step_y()) {
    for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
      store_pack<kCount, (kCount > 1)>(pack, out, row, col);
    }
  }
}

/// Every element of out, and nothing between its rows.                                            out [M, D]
void poison(cudaStream_t stream, const Tensor& out) {
  with_word(out.dtype, [&]<typename Word>(Word) {
    constexpr int kMany = kPackOf<Word>;
    const auto [to] = flattened<1>({out});
    const bool many = packs(to, kMany);
    const auto [grid, block] = cover(to.rows, many ? (to.cols + kMany - 1) / kMany : to.cols);
    launch(many ? fill<kMany, Word> : fill<1, Word>, {"poison", stream, grid, block},
           view<Word>(to), static_cast<Word>(poison_bits(out.dtype)));
  });
}

}  // namespace shardcheck::gpu
