// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharded/rank_context.hpp"

namespace shardcheck {

/// Executes a plan's collective on this rank: from the layouts of its input and output to the communicator's terms.
/// Reductions travel in the input's dtype (wire) and are rounded once to the output's (storage); slice moves nothing.
Tensor run_collective(const Instruction& instruction, RankContext& context, const Tensor& input);

}  // namespace shardcheck
