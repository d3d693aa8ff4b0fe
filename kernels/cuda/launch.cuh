// SPDX-License-Identifier: Apache-2.0
// How host code starts a kernel: launch(kernel, {...}, arguments...), under nvcc and on emu alike.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/memory.hpp"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/view.cuh"
#if defined(SHARDCHECK_EMU)
#include "kernels/emu/launch.hpp"
#endif

namespace shardcheck::gpu {

struct Launch {
  const char* name;  // of the primitive, for messages and traces
  cudaStream_t stream;
  dim3 grid, block;
  std::size_t shared_bytes = 0;  // dynamic
};

/// "rms_norm, grid [3, 1, 1] of blocks [64, 1, 1] with 0 bytes of dynamic shared memory"
inline std::string describe(const Launch& config) {
  std::string text = config.name;
  const auto append = [&text](const char* before, const dim3& d) {
    text.append(before).append(std::to_string(d.x)).append(", ").append(std::to_string(d.y));
    text.append(", ").append(std::to_string(d.z));
  };
  append(", grid [", config.grid);
  append("] of blocks [", config.block);
  return text.append("] with ").append(std::to_string(config.shared_bytes)).append(" bytes of dynamic shared memory");
}

/// Enqueues kernel(arguments...). Throws DeviceError naming the kernel and its shape if the launch is refused.
/// A grid without blocks does nothing. On emu every View among the arguments says what the kernel reads (const T) or
/// reads and writes (T), which the race check between streams goes by.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const Launch& config, const Arguments&... arguments) {
  if (config.grid.x == 0 || config.grid.y == 0 || config.grid.z == 0) return;
#if defined(SHARDCHECK_EMU)
  ::shardcheck::emu::enqueue_kernel<Parameters...>(kernel, config.name, config.stream, config.grid, config.block,
                                                   config.shared_bytes, static_cast<Parameters>(arguments)...);
#else
  cudaLaunchConfig_t native = {};
  native.gridDim = config.grid;
  native.blockDim = config.block;
  native.dynamicSmemBytes = config.shared_bytes;
  native.stream = config.stream;
  const cudaError_t status = cudaLaunchKernelEx(&native, kernel, static_cast<Parameters>(arguments)...);
  if (status != cudaSuccess) check(status, describe(config));
#endif
}

/// A tensor as a kernel's argument. Precondition: T is the tensor's dtype (or as wide, where bits alone are moved).
template <typename T>
View<T> view(const Tensor& tensor) {
  return {reinterpret_cast<T*>(address(tensor)), tensor.rows, tensor.cols, tensor.row_stride, tensor.col_stride};
}

/// Blocks that cover `n` items, `each` per block.
inline unsigned blocks_for(std::int64_t n, std::int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace shardcheck::gpu
