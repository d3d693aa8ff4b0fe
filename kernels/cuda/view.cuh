// SPDX-License-Identifier: Apache-2.0
// Global memory as kernels see it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/simt.cuh"

namespace shardcheck::gpu {

/// A strided matrix [rows, cols] in device memory; View<const T> is read only. Passed to kernels by value: launch()
/// takes from its type and extents which bytes the kernel reads and writes.
template <typename T>
struct View {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 1;  // elements

  __device__ T& operator()(std::int64_t row, std::int64_t col) const {
#if defined(SHARDCHECK_EMU)
    ::shardcheck::emu::check_index(row, rows, col, cols);
#endif
    return data[row * row_stride + col * col_stride];
  }
  /// Rows [begin, end), columns [begin, end): the same memory.
  __host__ __device__ View row_range(std::int64_t begin, std::int64_t end) const {
    return {data + begin * row_stride, end - begin, cols, row_stride, col_stride};
  }
  __host__ __device__ View col_range(std::int64_t begin, std::int64_t end) const {
    return {data + begin * col_stride, rows, end - begin, row_stride, col_stride};
  }
  __host__ __device__ bool dense() const { return col_stride == 1 && (row_stride == cols || rows <= 1); }
};

/// Up to kMost values by value, for kernels that take a list (terms of a sum, owned ranges, a head map's stretch).
template <typename T, int kMost>
struct Array {
  T values[kMost] = {};
  int size = 0;

  __host__ __device__ const T& operator[](int i) const { return values[i]; }
};

}  // namespace shardcheck::gpu
