// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "sharded/comm/rendezvous.hpp"

namespace shardcheck {

/// Runs `body(rank)` for every rank, each in a thread of its own, and tells the rendezvous how each ended. Returns
/// when all have. To be called between Rendezvous::begin and finish.
void run_rank_threads(Rendezvous& rendezvous, int ranks, const std::function<void(int rank)>& body);

}  // namespace shardcheck
