// SPDX-License-Identifier: Apache-2.0
// The two programs of a proof, and how they are run: the sharded one, and the same graph on one rank.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "harness/proof/made_model.hpp"
#include "harness/prove.hpp"
#include "harness/run.hpp"

namespace shardcheck {

/// A model, and what a plan makes of it.
struct ProofPair {
  std::unique_ptr<const Model> model;
  ResolvedPlan plan;  // as the plan says, without planted faults
  Program whole, sharded;
  std::map<Phase, std::vector<Step>> steps;
};

/// `config` is that of `like`, maybe shrunken. Throws what resolve() throws.
ProofPair make_proof_pair(const Model& like, const Config& config, MadeWeights weights,
                          const Plan& plan, const Mesh& mesh, const ProveOptions& options,
                          const Registry& ops);

/// A run of one program, and where it ended if it could not go on: local shapes that don't fit, ranks that disagree.
struct ProofRun {
  const Program* program = nullptr;
  TapRun taps;
  std::optional<RunEnd> ended;
};

/// Storage and wire are `dtype`; ranks are threads.
ProofRun run_for_proof(const Program& program, Device& device, WeightStore& weights, DType dtype,
                       const std::vector<Step>& steps, Interposer* interposer,
                       const VerifyParts& parts);

/// The planted fault of a run; null: none.
std::unique_ptr<Interposer> fault_of(const ProofPair& pair, DType dtype, Phase phase,
                                     const ProveOptions& options);

/// The mesh with every axis of one rank.
Mesh unsharded(Mesh mesh);

}  // namespace shardcheck
