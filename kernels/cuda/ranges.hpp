// SPDX-License-Identifier: Apache-2.0
// Names for stretches of host code, as Nsight Systems shows them.
#pragma once

#include <string_view>

#include "kernels/device.hpp"

namespace shardcheck::gpu {

/// An NVTX range on this thread, which ends with the object. Costs nothing without a profiler; nothing at all on emu.
NamedRange named_range(std::string_view name);

}  // namespace shardcheck::gpu
