// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/gpu_kind.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {

std::unique_ptr<Device> make_test_device() { return builtin_devices().make(gpu_kind()); }
bool small_shapes() { return gpu_kind() == "emu"; }

}  // namespace shardcheck
