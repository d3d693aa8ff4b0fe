// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/emu_device.hpp"

#include "kernels/cuda/gpu_device.hpp"

namespace shardcheck {

std::unique_ptr<Device> make_emu_device() { return gpu::make_gpu_device(0); }

}  // namespace shardcheck
