// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace shardcheck {

/// Host memory; primitives run at once on the calling thread; linears through Eigen. Storage f64, f32, bf16, fp16:
/// 16-bit values are widened block by block to f32.
std::unique_ptr<Device> make_cpu_device();

}  // namespace shardcheck
