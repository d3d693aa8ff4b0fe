// SPDX-License-Identifier: Apache-2.0
// How a kernel gets onto a stream of the emulated device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/emu/argument_views.hpp"
#include "kernels/emu/block_runner.hpp"
#include "kernels/emu/cuda_api.hpp"

namespace shardcheck::emu {

/// Bytes of parameters that a launch takes on sm_70 and later.
inline constexpr std::size_t kMostParameterBytes = 32764;

/// Throws DeviceError with CUDA's status, the kernel's name and the limit if CUDA would refuse this launch. Else how
/// much shared memory a block of it may have, static and dynamic together.
std::size_t check_launch(const void* kernel, const char* name, cudaStream_t stream, dim3 grid,
                         dim3 block, std::size_t shared_bytes);

/// Runtime::enqueue. Precondition: the stream is known.
void enqueue_task(cudaStream_t stream, const char* name, const std::vector<Access>& accesses,
                  std::function<void(std::uint64_t order_seed)> run);

/// Enqueues the kernel. Throws DeviceError if CUDA would refuse the launch, if a View isn't inside of one allocation or
/// its elements aren't aligned, and if another stream touches the same bytes in no order with it.
template <typename... Parameters>
void enqueue_kernel(void (*kernel)(Parameters...), const char* name, cudaStream_t stream, dim3 grid,
                    dim3 block, std::size_t shared_bytes,
                    std::type_identity_t<Parameters>... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel arguments are copied as bytes");
  static_assert((sizeof(Parameters) + ... + 0) <= kMostParameterBytes, "more than a launch takes");
  const std::size_t shared_limit = check_launch(reinterpret_cast<const void*>(kernel), name, stream,
                                                grid, block, shared_bytes);
  std::vector<Access> accesses;
  (append_accesses(arguments, name, accesses), ...);
  enqueue_task(stream, name, accesses,
               [=, named = std::string(name),
                values = std::make_tuple(arguments...)](std::uint64_t order_seed) {
                 run_grid({named.c_str(), grid, block, shared_bytes}, {order_seed, shared_limit},
                          [&] { std::apply(kernel, values); });
               });
}

}  // namespace shardcheck::emu
