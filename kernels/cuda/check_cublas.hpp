// SPDX-License-Identifier: Apache-2.0
// The same for calls of cuBLASLt; apart, because the communicators' module links none.
#pragma once

#include <string_view>

#include "kernels/cuda/api.hpp"

namespace shardcheck::gpu {

/// Throws DeviceError "linear: CUBLAS_STATUS_NOT_SUPPORTED (15)".
void check(cublasStatus_t status, std::string_view what);

}  // namespace shardcheck::gpu
