// SPDX-License-Identifier: Apache-2.0
// Runs a grid of CUDA threads on the calling thread: one block after the other, one fiber per CUDA thread that has to
// wait. What a kernel may not do ends in a DeviceError that names kernel, block and thread; see simt.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/emu/dim3.hpp"

namespace shardcheck::emu {

struct Grid {
  const char* kernel;  // its name in messages
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // dynamic
};

struct RunOptions {
  /// 0: blocks and threads in order. Else the blocks, and the ready threads of a block in every round of scheduling,
  /// run in an order drawn from this seed.
  std::uint64_t order_seed = 0;
  /// Static and dynamic shared memory of a block together. CUDA's limit for kernels that don't ask for more.
  std::size_t shared_limit = 48 * 1024;
};

/// Runs `body` once per CUDA thread of every block; the kernel language of simt.hpp works inside of it.
/// Throws DeviceError if the grid is none that CUDA launches, or a thread did what kernels may not do, and whatever
/// else `body` throws; all threads' stacks have been unwound then. Host threads may run grids at the same time.
void run_grid(const Grid& grid, const RunOptions& options, const std::function<void()>& body);

}  // namespace shardcheck::emu
