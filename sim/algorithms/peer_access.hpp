// SPDX-License-Identifier: Apache-2.0
// What one_shot and two_shot have in common: kernels that read and write their peers' memory themselves.
#pragma once

#include <vector>

#include "sim/collective.hpp"
#include "sim/fact.hpp"

namespace shardcheck::sim {

/// Loads and stores of a kernel reach a little less than a ring's copies do, on the same wires.
BytesPerSecond peer_access_bandwidth(const Link& link, int ranks);
Constant peer_access_constant();

}  // namespace shardcheck::sim
