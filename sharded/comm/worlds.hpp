// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "sharded/comm/communicator.hpp"
#include "sharded/comm/dense_group.hpp"
#include "sharded/comm/wire.hpp"

namespace shardcheck {

/// Ranks are threads of this process; data moves by Device::copy and Device::reduce_n, so the ranks' devices must be
/// one object or of one kind that reaches all their memory.
std::unique_ptr<World> make_thread_world(const Mesh& mesh);

/// One rank after the other. Operands are checked and records made as among threads; nobody waits and nothing moves:
/// what a collective would fill stays poisoned.
std::unique_ptr<World> make_solo_world(const Mesh& mesh);

/// Ranks are threads of this process, each with a device of its own; the library moves the data. Calls are checked as
/// among threads. Where a rank fails, work that waits for it on the devices is ended.
/// Throws InputError if the library refuses so many ranks.
std::unique_ptr<World> make_library_world(const Mesh& mesh, std::shared_ptr<CollectiveLibrary> library);

/// Ranks are processes, each running the same program; the processes beyond the mesh's ranks run nothing. Without a
/// library every operand travels with its call, through the host, and each rank does for itself what thread ranks do:
/// the bits are theirs on any device. What hangs ends by a timeout (comm_timeout).
/// Throws InputError if there are fewer processes than ranks.
std::unique_ptr<World> make_process_world(const Mesh& mesh, const std::shared_ptr<Wire>& wire,
                                          std::shared_ptr<CollectiveLibrary> library = nullptr);

}  // namespace shardcheck
