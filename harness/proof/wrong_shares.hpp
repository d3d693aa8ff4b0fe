// SPDX-License-Identifier: Apache-2.0
// Whose share of a wrong sum is wrong.
#pragma once

#include <span>
#include <vector>

#include "harness/proof/counterparts.hpp"
#include "harness/proof/proof_run.hpp"
#include "harness/proof/value_comparison.hpp"

namespace shardcheck {

/// The ranks of a partial value whose own share isn't what its op makes of the whole input and the weights of `plan`:
/// the op is run again on each of the difference's ranks, alone, on the unsharded values of the last of `steps`.
/// Empty where all shares are right (the plan's own ranges are at fault), and where what the op reads has no
/// unsharded value.
std::vector<int> wrong_shares(const RunDifference& difference, const Counterparts& counterparts,
                              std::span<const Step* const> steps, const ProofRun& sharded,
                              const ProofRun& whole, WeightStore& weights, const ResolvedPlan& plan,
                              Device& device);

}  // namespace shardcheck
