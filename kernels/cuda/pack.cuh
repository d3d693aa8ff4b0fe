// SPDX-License-Identifier: Apache-2.0
// Neighbouring elements of a row, moved together: 16 bytes at once where they lie that way, one by one elsewhere. What
// a thread computes is the same in both cases, and so are the bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/primitives.hpp"

namespace shardcheck::gpu {

inline constexpr int kPackBytes = 16;  // the widest load and store that there is

/// Elements of type T in one load.
template <typename T>
inline constexpr int kPackOf = kPackBytes / static_cast<int>(sizeof(T));

template <typename T, int kCount>
struct alignas(std::min<std::size_t>(sizeof(T) * kCount, kPackBytes)) Pack {
  T values[kCount];
};

/// A GPU faults on a load of several bytes that isn't aligned to their number; the emulator says where.
template <typename Packed>
__device__ inline void check_pack(const void* address) {
#if defined(SHARDCHECK_EMU)
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(Packed) != 0) {
    ::shardcheck::emu::fail(
        "elements are moved together from an address that isn't aligned to all of them");
  }
#else
  (void)address;
#endif
}

/// Elements [col, col + kCount) of a row; those behind its end are zero bits. kAligned promises what packs() checks.
template <int kCount, bool kAligned, typename T>
__device__ inline Pack<std::remove_const_t<T>, kCount> load_pack(const View<T>& x, std::int64_t row,
                                                                 std::int64_t col) {
  using Loaded = Pack<std::remove_const_t<T>, kCount>;
  if (kAligned && col + kCount <= x.cols) {
    (void)x(row, col + kCount - 1);
    check_pack<Loaded>(&x(row, col));
    return *reinterpret_cast<const Loaded*>(&x(row, col));
  }
  Loaded pack = {};
  for (int i = 0; i < kCount; ++i) {
    if (col + i < x.cols) pack.values[i] = x(row, col + i);
  }
  return pack;
}

/// The counterpart of load_pack: nothing is written behind the end of the row.
template <int kCount, bool kAligned, typename T>
__device__ inline void store_pack(const Pack<T, kCount>& pack, const View<T>& out, std::int64_t row,
                                  std::int64_t col) {
  if (kAligned && col + kCount <= out.cols) {
    (void)out(row, col + kCount - 1);
    check_pack<Pack<T, kCount>>(&out(row, col));
    *reinterpret_cast<Pack<T, kCount>*>(&out(row, col)) = pack;
    return;
  }
  for (int i = 0; i < kCount; ++i) {
    if (col + i < out.cols) out(row, col + i) = pack.values[i];
  }
}

/// May `count` neighbours in this tensor's rows be moved together, from every column that is a multiple of `count`?
inline bool packs(const Tensor& tensor, int count) {
  const auto size = static_cast<std::int64_t>(element_size(tensor.dtype));
  const std::int64_t bytes = std::min<std::int64_t>(count * size, kPackBytes);
  const auto first = reinterpret_cast<std::uintptr_t>(address(tensor));
  return tensor.col_stride == 1 && first % static_cast<std::uintptr_t>(bytes) == 0 &&
         (tensor.rows <= 1 || tensor.row_stride * size % bytes == 0);
}

inline bool packs(std::initializer_list<const Tensor*> tensors, int count) {
  return std::ranges::all_of(tensors, [count](const Tensor* tensor) { return packs(*tensor, count); });
}

/// Grid and block of two dimensions for `items` per row, x along the row. They never reach a limit of the hardware:
/// kernels go on by grid_step where a grid ends before the extents do.
struct Cover {
  dim3 grid, block;
};

inline constexpr unsigned kCoverThreads = 256;
inline constexpr std::int64_t kMostBlocks = 65535;  // of a grid's y; enough to fill any device

inline Cover cover(std::int64_t rows, std::int64_t items) {
  unsigned x = 1, y = 1;
  while (x < kCoverThreads && x < items) x *= 2;
  while (x * y < kCoverThreads && y < rows) y *= 2;
  const std::int64_t across = std::min(kMostBlocks, (items + x - 1) / x),
                     down = std::min(kMostBlocks, (rows + y - 1) / y);
  return {dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)), dim3(x, y)};
}

/// A thread's first index along x or y of the grid, and the step to its next one.
__device__ inline std::int64_t grid_first_x() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t grid_first_y() {
  return static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}
__device__ inline std::int64_t grid_step_x() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}
__device__ inline std::int64_t grid_step_y() {
  return static_cast<std::int64_t>(gridDim.y) * blockDim.y;
}

}  // namespace shardcheck::gpu
