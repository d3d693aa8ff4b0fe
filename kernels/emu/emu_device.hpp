// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/device.hpp"

namespace shardcheck {

/// The CUDA device, kernels/cuda, compiled against kernels/emu in place of the CUDA toolkit: the same host code and the
/// same kernels, one fiber per CUDA thread. For tiny shapes; it finds what a CPU device can't show.
std::unique_ptr<Device> make_emu_device();

}  // namespace shardcheck
