// SPDX-License-Identifier: Apache-2.0
// An op from outside: attention whose tokens are cut over the ranks. Keys and values travel round a ring of ranks, and
// each rank merges what its own queries see of every block.
#pragma once

#include <memory>

#include "harness/verify.hpp"
#include "sharded/op.hpp"

namespace ring {

/// "ring_attention". A plan asks for it with "ops": {"layers.*.self_attn.attn": "ring_attention"}.
std::unique_ptr<const shardcheck::Op> make_ring_attention();

/// The built-in parts and this op: how to run it, how it is recomputed (as attention is), and what it exchanges.
shardcheck::VerifyParts parts_with_ring_attention();

}  // namespace ring
