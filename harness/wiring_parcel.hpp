// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "harness/wiring.hpp"

namespace shardcheck {

/// What another process found out about its own rank's weights, as bytes.
std::string pack_faults(const std::vector<WiringFault>& faults);
std::vector<WiringFault> unpack_faults(std::string_view bytes);

}  // namespace shardcheck
