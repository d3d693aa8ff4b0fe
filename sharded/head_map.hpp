// SPDX-License-Identifier: Apache-2.0
// Which kv head serves each q head of a rank: what the attention primitives take instead of a ratio.
#pragma once

#include <cstdint>
#include <vector>

#include "sharded/graph.hpp"
#include "sharded/layout.hpp"

namespace shardcheck {

/// Heads of a rank in local order: its feature ranges in units of one head. Precondition: no range ends inside a head.
std::vector<std::int64_t> heads_of(const Layout& layout, int rank, std::int64_t head_dim);

/// Local kv head of each local q head; -1 where the rank doesn't hold it. `attributes` of an attention node.
std::vector<std::int32_t> head_map(const Layout& q, const Layout& k, int rank,
                                   const Attributes& attributes);

}  // namespace shardcheck
