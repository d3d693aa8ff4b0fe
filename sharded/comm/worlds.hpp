// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sharded/comm/communicator.hpp"

namespace shardcheck {

/// Ranks are threads of this process; data moves by Device::copy and Device::reduce_n, so the ranks' devices must be one
/// object or of one kind that reaches all their memory.
std::unique_ptr<World> make_thread_world(const Mesh& mesh);

/// One rank after the other. Operands are checked and records made as among threads; nobody waits and nothing moves:
/// what a collective would fill stays poisoned.
std::unique_ptr<World> make_solo_world(const Mesh& mesh);

}  // namespace shardcheck
