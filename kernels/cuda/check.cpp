// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/check.hpp"

#include <fmt/format.h>

#include "model/error.hpp"

namespace shardcheck::gpu {

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  throw DeviceError(fmt::format("{}: {} ({}): {}", what, cudaGetErrorName(status),
                                static_cast<int>(status), cudaGetErrorString(status)));
}

}  // namespace shardcheck::gpu
