// SPDX-License-Identifier: Apache-2.0
// A shipped model's program, run once: its taps, its ledgers, and the ledgers of the same program on shapes alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "harness/inputs.hpp"
#include "harness/run.hpp"
#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/runner.hpp"

namespace shardcheck::testing {

/// What to run.
struct RunOf {
  std::string model = "tiny-llama";
  std::string plan = "megatron";  // a shipped plan's name, or a plan's text
  Mesh mesh{{{"tp", 2}}};
  RunSettings settings{DType::f32, DType::f32, {}};
  Phase phase = Phase::prefill;
  std::vector<std::int64_t> lengths{9};
  std::int64_t decode_steps = 3, chunk = 0;
  Interposer* interposer = nullptr;
  std::function<void(RankContext&)> inspect = {};
  std::string device = "cpu";
};

struct RanProgram {
  VerifyParts parts;  // the program's instructions point to its ops
  Model model;
  Program program;
  RunSettings settings;
  Sequences sequences;
  std::vector<Step> steps;
  std::unique_ptr<Device> device;
  std::unique_ptr<WeightStore> weights;
  TapRun taps;
  RunResult result;
  std::vector<Ledger> meta;
};

inline std::unique_ptr<RanProgram> run_of(const RunOf& what) {
  VerifyParts parts = builtin_parts();
  Model model = load_model(what.model);
  const Plan plan = what.plan.find('{') == std::string::npos ? load_plan(what.plan)
                                                             : parse_plan(what.plan, "plan.json");
  Program program = build_program(model, resolve(plan, model, what.mesh), parts.ops);
  auto ran = std::make_unique<RanProgram>(RanProgram{std::move(parts),
                                                     std::move(model),
                                                     std::move(program),
                                                     what.settings,
                                                     {},
                                                     {},
                                                     nullptr,
                                                     nullptr,
                                                     {},
                                                     {},
                                                     {}});
  ran->device = ran->parts.devices.make(what.device);
  InputOptions inputs;
  inputs.lengths = what.lengths;
  inputs.decode_steps = what.decode_steps;
  inputs.chunk = what.chunk;
  const Program* const only = &ran->program;
  ran->sequences = make_sequences(inputs, ran->model.config(), {&only, 1});
  ran->steps = what.phase == Phase::prefill ? prefill_steps(ran->sequences, what.chunk)
                                            : decode_steps(ran->sequences, inputs);
  ran->weights = std::make_unique<WeightStore>(ran->model, what.settings.storage);
  TapCollector collector(ran->program, what.settings, ran->steps);
  RunOptions options;
  options.taps = &collector;
  options.interposer = what.interposer;
  options.check_wiring = true;
  options.inspect = what.inspect;
  Device* const device = ran->device.get();
  const auto world = ran->parts.worlds.make("threads", what.mesh);
  ran->result = run_program(ran->program, *world, {&device, 1}, *ran->weights, what.settings,
                            ran->steps, options);
  ran->taps = collector.release();
  const auto shapes = ran->parts.devices.make("meta");
  Device* const meta = shapes.get();
  const auto solo = ran->parts.worlds.make("solo", what.mesh);
  WeightStore no_values(ran->model, what.settings.storage);
  ran->meta = run_program(ran->program, *solo, {&meta, 1}, no_values, what.settings, ran->steps).ledgers;
  return ran;
}

/// Tensor-parallel with the residual stream cut along the tokens (sequence-parallel): every all_reduce becomes a
/// reduce_scatter, and a gather before the next linears.
inline const char* const kSequenceParallel = R"plan({ "name": "sequence", "mesh": ["tp"],
  "weights": {
    "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"},
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "reduce_scatter(sum, tokens, tp)",
    "layers.*.self_attn.q_proj.in": "all_gather(tokens, tp)",
    "layers.*.self_attn.o_proj.out": "reduce_scatter(sum, tokens, tp)",
    "layers.*.mlp.gate_proj.in": "all_gather(tokens, tp)",
    "layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
    "lm_head.in": "all_gather(tokens, tp)", "lm_head.out": "all_gather(vocab, tp)" } })plan";

}  // namespace shardcheck::testing
