// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace shardcheck::gpu {

/// GPU number `index`: the device "cuda", or "emu" where this is compiled for it. Calls enqueue and return; any thread may
/// call. Throws DeviceError if CUDA refuses.
std::unique_ptr<Device> make_gpu_device(int index);

}  // namespace shardcheck::gpu
