// SPDX-License-Identifier: Apache-2.0
// Every call of the CUDA runtime goes through here: an error becomes a DeviceError that names the call and what it was for.
#pragma once

#include <string_view>

#include "kernels/cuda/api.hpp"

namespace shardcheck::gpu {

/// Throws DeviceError "rms_norm: cudaErrorInvalidValue (1): invalid argument".
void check(cudaError_t status, std::string_view what);

}  // namespace shardcheck::gpu
