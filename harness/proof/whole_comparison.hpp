// SPDX-License-Identifier: Apache-2.0
// Every value of a sharded run against the unsharded run of the same inputs: bit for bit over the field, and within the
// limit of gate G2 in f64. No value is recomputed; what ranks hold in parts is compared in parts, sums are added up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/proof/proof_run.hpp"
#include "harness/proof/value_comparison.hpp"
#include "sharded/weights.hpp"

namespace shardcheck {

struct RunComparison {
  std::optional<RunDifference> first;
  std::int64_t values = 0;  // compared
};

/// Both runs in DType::field or in f64, of the same steps. `weights` are those of both. Where a partial sum differs the
/// ranks are those whose share isn't what its op makes of the whole input and the weights of `plan`; all if none is.
RunComparison compare_runs(const ProofRun& sharded, const ProofRun& whole, WeightStore& weights,
                           const ResolvedPlan& plan, Device& device);

}  // namespace shardcheck
