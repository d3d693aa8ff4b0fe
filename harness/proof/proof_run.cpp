// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/proof_run.hpp"

#include "harness/proof/proof_steps.hpp"
#include "model/error.hpp"

namespace shardcheck {

Mesh unsharded(Mesh mesh) {
  for (Mesh::Axis& axis : mesh.axes) axis.size = 1;
  return mesh;
}

ProofPair make_proof_pair(const Model& like, const Config& config, MadeWeights weights,
                          const Plan& plan, const Mesh& mesh, const ProveOptions& options,
                          const Registry& ops) {
  ProofPair pair;
  pair.model = std::make_unique<const Model>(made_model(like, config, weights));
  pair.plan = resolve(plan, *pair.model, mesh);
  pair.whole = build_program(*pair.model, resolve(plan, *pair.model, unsharded(mesh)), ops);
  pair.sharded = build_program(*pair.model, pair.plan, ops);
  pair.steps = proof_steps(pair.sharded);
  if (mesh.ranks() > 1 && options.edit_plan) {
    ResolvedPlan edited = pair.plan;
    options.edit_plan(edited);
    pair.sharded = build_program(*pair.model, edited, ops);
  }
  if (mesh.ranks() > 1 && options.edit_program) options.edit_program(pair.sharded);
  return pair;
}

ProofRun run_for_proof(const Program& program, Device& device, WeightStore& weights, DType dtype,
                       const std::vector<Step>& steps, Interposer* interposer,
                       const VerifyParts& parts) {
  const RunSettings settings{dtype, dtype, {}};
  const std::unique_ptr<World> world = parts.worlds.make("threads", program.mesh);
  TapCollector collector(program, settings, steps);
  RunOptions run;
  run.taps = &collector;
  run.interposer = interposer;
  Device* const devices[] = {&device};
  ProofRun result;
  result.program = &program;
  const auto ended = [&](const std::exception& error) {
    result.ended = RunEnd{"", 0, steps.front().phase, steps.front().index, {}, error.what()};
  };
  try {
    result.ended = run_program(program, *world, devices, weights, settings, steps, run).ended;
  } catch (const ShapeError& error) {
    ended(error);
  } catch (const CommError& error) {
    ended(error);
  }
  result.taps = collector.release();
  return result;
}

std::unique_ptr<Interposer> fault_of(const ProofPair& pair, DType dtype, Phase phase,
                                     const ProveOptions& options) {
  if (!options.fault || pair.sharded.mesh.ranks() == 1) return nullptr;
  return options.fault(pair.sharded, RunSettings{dtype, dtype, {}}, phase);
}

}  // namespace shardcheck
