// SPDX-License-Identifier: Apache-2.0
// The inputs of a proof: which steps of which sequences tell apart what a plan does.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sharded/program.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

inline constexpr std::int64_t kMostProofTokens = 64;  // of a sequence, unless ids need more

/// What a proof feeds the programs, by phase. The first sequence is longer than twice the largest window (up to 64
/// tokens and the learned positions there are); the ids hold the first and last vocabulary row of each rank; no mesh
/// axis cuts the rows of the first step into equal parts; prompts come in chunks, and the last step of each phase is
/// one token: fewer than ranks. Where the plan cuts sequences, there is one more than that group has ranks.
std::map<Phase, std::vector<Step>> proof_steps(const Program& program);

}  // namespace shardcheck
