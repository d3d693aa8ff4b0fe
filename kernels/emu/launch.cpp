// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/emu/runtime.hpp"
#include "model/error.hpp"

namespace shardcheck::emu {
namespace {

constexpr unsigned kMostThreads = 1024, kMostThreadsZ = 64;           // of a block
constexpr unsigned kMostBlocksX = 2147483647, kMostBlocksYZ = 65535;  // of a grid
constexpr std::size_t kSharedWithoutAsking = 48 * 1024;
constexpr std::size_t kSharedAtMost = 227 * 1024;  // sm_90 and sm_100

[[noreturn]] void refuse(const char* name, cudaError_t status, const std::string& rule) {
  throw DeviceError(fmt::format("{}: {} ({}): {}", name, cudaGetErrorName(status),
                                static_cast<int>(status), rule));
}

}  // namespace

void check_aligned(const void* pointer, std::size_t element_bytes, const char* kernel) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % element_bytes == 0) return;
  throw DeviceError(
      fmt::format("{}: a View of elements of {} bytes starts at {}, which isn't a multiple of that",
                  kernel, element_bytes, pointer));
}

std::size_t check_launch(const void* kernel, const char* name, cudaStream_t stream, dim3 grid,
                         dim3 block, std::size_t shared_bytes) {
  Runtime& runtime = Runtime::instance();
  if (!runtime.knows(stream))
    refuse(name, cudaErrorInvalidResourceHandle, "this stream isn't there (any more)");
  if (grid.count() == 0 || grid.x > kMostBlocksX || grid.y > kMostBlocksYZ || grid.z > kMostBlocksYZ) {
    refuse(name, cudaErrorInvalidConfiguration,
           fmt::format("a grid of {} x {} x {} blocks; it has at least one, y and z at most {}",
                       grid.x, grid.y, grid.z, kMostBlocksYZ));
  }
  if (block.count() == 0 || block.count() > kMostThreads || block.z > kMostThreadsZ) {
    refuse(name, cudaErrorInvalidConfiguration,
           fmt::format("a block of {} x {} x {} threads; it has 1 to {}, z at most {}", block.x,
                       block.y, block.z, kMostThreads, kMostThreadsZ));
  }
  const std::size_t allowed = runtime.dynamic_shared_limit(kernel);
  if (shared_bytes > std::max(allowed, kSharedWithoutAsking)) {
    refuse(name, cudaErrorInvalidValue,
           fmt::format("{} bytes of dynamic shared memory; at most {}, or what "
                       "cudaFuncAttributeMaxDynamicSharedMemorySize allows, up to {}",
                       shared_bytes, std::max(allowed, kSharedWithoutAsking), kSharedAtMost));
  }
  return allowed > kSharedWithoutAsking ? kSharedAtMost : kSharedWithoutAsking;
}

void enqueue_task(cudaStream_t stream, const char* name, const std::vector<Access>& accesses,
                  std::function<void(std::uint64_t order_seed)> run) {
  Runtime::instance().enqueue(stream, name, accesses, std::move(run));
}

}  // namespace shardcheck::emu
