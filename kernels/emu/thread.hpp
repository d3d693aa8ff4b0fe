// SPDX-License-Identifier: Apache-2.0
// The CUDA thread that a host thread is running.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>

#include "kernels/emu/dim3.hpp"
#include "kernels/emu/warp.hpp"

namespace shardcheck::emu {

struct Worker;  // a fiber and its stack

enum class ThreadState : std::uint8_t { ready, at_barrier, at_warp_operation, ended };

struct Thread {
  uint3 index;
  std::uint16_t id = 0;  // in the block
  std::uint8_t lane = 0;
  ThreadState state = ThreadState::ready;
  Warp* warp = nullptr;
  Worker* worker = nullptr;       // on whose stack it runs; null: not started, or ended
  std::source_location waits_at;  // the barrier or warp operation

  std::uint32_t lane_bit() const { return 1u << lane; }
};

// What a host thread is running; it has one block at a time.
inline constinit thread_local const char* current_kernel = nullptr;
inline constinit thread_local Thread* current_thread = nullptr;  // null outside of kernels
/// Grows with every block and every __syncthreads that its threads have passed.
inline constinit thread_local std::uint32_t current_interval = 0;

// The built-in variables, set whenever a thread goes on.
inline constinit thread_local uint3 threadIdx = {};
inline constinit thread_local uint3 blockIdx = {};
inline constinit thread_local dim3 blockDim = {};
inline constinit thread_local dim3 gridDim = {};

/// The threadIdx of the block's thread `id`.
inline uint3 thread_index(unsigned id) {
  return {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
}

/// "(1, 0, 0)".
std::string to_string(const uint3& index);
/// "rms_norm.cuh:41".
std::string to_string(const std::source_location& place);

/// Throws a DeviceError: "kernel rms_norm, block (3, 0, 0), thread (5, 0, 0): " + what.
[[noreturn]] void fail(const std::string& what);
[[noreturn]] void fail_index(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols);
/// The same message about another thread of the block.
std::string message(const uint3& thread, const std::string& what);

}  // namespace shardcheck::emu
