// SPDX-License-Identifier: Apache-2.0
#include "harness/trace.hpp"

#include <algorithm>

namespace shardcheck {

std::vector<Step> traced_steps(Phase phase, const TraceOptions& options) {
  Step step{phase, 0, {}, {}};
  for (std::int64_t s = 0; s < options.batch; ++s) {
    const bool prefill = phase == Phase::prefill;
    step.sequences.push_back({s, prefill ? 0 : options.sequence, prefill ? options.sequence : 1});
    step.ids.resize(step.ids.size() + static_cast<std::size_t>(step.sequences.back().count), 0);
  }
  return {step};
}

namespace {

/// Rows of all sequences that a rank keeps of a cache value, after a prompt and a token.
std::int64_t kept_rows(const Value& value, const Mesh& mesh, int rank, const TraceOptions& options) {
  const std::int64_t length = options.sequence + 1;
  const std::int64_t seen = value.window > 0 ? std::min(value.window, length) : length;
  if (value.layout.row_axes.empty()) return options.batch * seen;
  const Step prompt = traced_steps(Phase::prefill, options)[0];
  const Step token = traced_steps(Phase::decode, options)[0];
  const Step* const steps[] = {&prompt, &token};
  return total(value.layout.cache_ranges(mesh, rank, steps, value.window));
}

}  // namespace

std::int64_t weight_bytes(const Program& program, int rank, DType storage) {
  std::int64_t elements = 0;
  const auto held = [&](const Module& module) {
    return total(program.plan.rows_of(module, rank)) * total(program.plan.cols_of(module, rank));
  };
  for (const Module& module : program.modules) {
    if (module.has_bias) elements += total(program.plan.rows_of(module, rank));
    const Module* source = module.tied_to ? program.find_module(*module.tied_to) : nullptr;
    const bool shared = source != nullptr &&
                        program.plan.rows_of(*source, rank) == program.plan.rows_of(module, rank) &&
                        program.plan.cols_of(*source, rank) == program.plan.cols_of(module, rank);
    if (!shared) elements += held(module);
  }
  return elements * static_cast<std::int64_t>(element_size(storage));
}

std::int64_t kv_cache_bytes(const Program& program, int rank, const TraceOptions& options) {
  std::int64_t elements = 0;
  const Value* known = nullptr;  // layers are cut alike
  std::int64_t rows = 0;
  for (const Instruction& instruction : program.instructions.at(Phase::decode)) {
    if (instruction.op == nullptr || instruction.op->rows() != ValueRows::cache) continue;
    for (const int output : instruction.outputs) {
      const Value& value = program.value(output);
      if (known == nullptr || known->window != value.window || known->layout != value.layout)
        rows = kept_rows(value, program.mesh, rank, options);
      known = &value;
      elements += rows * value.layout.local_features(rank);
    }
  }
  return elements * static_cast<std::int64_t>(element_size(options.settings.storage));
}

sim::RunLoad trace(const Model& model, const Program& program, Phase phase,
                   const TraceOptions& options, const VerifyParts& parts) {
  const std::unique_ptr<World> world = parts.worlds.make("solo", program.mesh);
  const std::unique_ptr<Device> meta = parts.devices.make("meta");
  Device* const device = meta.get();
  WeightStore weights(model, options.settings.storage);
  const std::vector<Step> steps = traced_steps(phase, options);
  const std::vector<Step> prompt = traced_steps(Phase::prefill, options);
  RunOptions run;
  if (phase == Phase::decode) run.earlier = prompt;
  const RunResult result = run_program(program, *world, {&device, 1}, weights, options.settings,
                                       steps, run);
  std::vector<sim::MemoryNeed> needs;
  for (int rank = 0; rank < program.mesh.ranks(); ++rank) {
    needs.push_back(
        {sim::Bytes(static_cast<double>(weight_bytes(program, rank, options.settings.storage))),
         sim::Bytes(static_cast<double>(kv_cache_bytes(program, rank, options)))});
  }
  return sim::fold(program.mesh, phase, result.ledgers, std::move(needs));
}

}  // namespace shardcheck
