// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_device.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {

std::unique_ptr<Device> make_test_device() { return make_cpu_device(); }
bool small_shapes() { return false; }

}  // namespace shardcheck
