// SPDX-License-Identifier: Apache-2.0
// Fusion: two instructions of a program that one primitive of every device does at once. A pass over the finished list
// of instructions, after the plan's collectives are in it, so it knows nothing of devices and a plan nothing of it.
//
// A fused program has the values of the program that it was made from: the same taps, placements and bits. It is run,
// traced and costed in that program's place, and judged as that program: each op by its own check, its inner values too.
#pragma once

#include <string_view>
#include <vector>

#include "sharded/op.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

/// The residual add y = a + b and the RMSNorm that reads y become `add_rms_norm`, with the outputs y and norm(y).
inline constexpr std::string_view kAddRmsNorm = "add_rms_norm";

/// Fuses every residual add with the instruction after it, where that is an RMSNorm of the sum and a rank's tokens are
/// whole rows of both: R or S(tokens) on every axis, nothing partial. A collective in between keeps them apart, as
/// do ops of the caller's own that bear the names (Op::fusible), and weights of a norm that a forced plan cuts.
/// The result is a program of its own, with the same numbers of values. `ops` has `add_rms_norm`, else InputError.
Program fuse(const Program& program, const Registry& ops);

/// Instructions of one phase that stand for two.
int fused_instructions(const Program& program, Phase phase);

/// The instructions before they were fused, in order. They live as long as the program.
std::vector<const Instruction*> unfused(const Program& program, Phase phase);

}  // namespace shardcheck
