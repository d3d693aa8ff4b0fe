// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/check_cublas.hpp"

#include <fmt/format.h>

#include "model/error.hpp"

namespace shardcheck::gpu {

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(
      fmt::format("{}: {} ({})", what, cublasLtGetStatusName(status), static_cast<int>(status)));
}

}  // namespace shardcheck::gpu
