// SPDX-License-Identifier: Apache-2.0
// The language of kernel bodies when g++ compiles them (SHARDCHECK_EMU): what CUDA's compiler would know by itself. All
// names are usable in shardcheck::gpu as they are.
//
// Inside of run_grid a kernel is checked while it runs; what it may not do throws a DeviceError that names kernel,
// block, thread and place:
//  - an index outside of a View or of a shared array;
//  - a read of shared memory that nobody has written in this block (it starts as 0xFF in every block);
//  - two threads that access an element of shared memory, one of them writing, with no barrier that orders them;
//  - a barrier that not all threads of the block come to, or that they reach at different places;
//  - a warp operation whose mask names lanes that don't come, differs among them, or leaves out the lane itself or the
//    one that it reads;
//  - more shared memory, threads or blocks than CUDA allows, or local variables that fill the stack of a fiber.
#pragma once

#include <cstdint>

#include "kernels/emu/atomics.hpp"
#include "kernels/emu/device_math.hpp"
#include "kernels/emu/shared_pointer.hpp"
#include "kernels/emu/thread.hpp"
#include "kernels/emu/warp_functions.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace shardcheck::emu {

inline constexpr int warpSize = kWarpLanes;

/// Throws DeviceError unless 0 <= row < rows and 0 <= col < cols.
inline void check_index(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  if (static_cast<std::uint64_t>(row) >= static_cast<std::uint64_t>(rows) ||
      static_cast<std::uint64_t>(col) >= static_cast<std::uint64_t>(cols)) [[unlikely]] {
    fail_index(row, rows, col, cols);
  }
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// Order global memory for other blocks. Here all threads see it in one order anyway.
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { fail("__trap()"); }

}  // namespace shardcheck::emu

namespace shardcheck::gpu {
using namespace ::shardcheck::emu;  // NOLINT: the point of this header
}
