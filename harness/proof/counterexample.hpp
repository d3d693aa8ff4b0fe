// SPDX-License-Identifier: Apache-2.0
// A difference between two programs made small enough to read.
#pragma once

#include <optional>

#include "harness/proof/proof_run.hpp"

namespace shardcheck {

/// Looks for the smallest shape on which the tap of `first` differs in f64 with small integers as weights and as what
/// its op reads, then with what the network makes of them; the last shape tried is `proved`, with the weights that the
/// difference was confirmed on. None where local shapes don't fit: there are no two numbers to put side by side.
std::optional<Counterexample> find_counterexample(const Model& model, const Plan& plan,
                                                  const Mesh& mesh, const FirstDifference& first,
                                                  const Config& proved, Phase phase,
                                                  const ProveOptions& options,
                                                  const VerifyParts& parts);

}  // namespace shardcheck
