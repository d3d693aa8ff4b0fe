// SPDX-License-Identifier: Apache-2.0
// The plans that come with the program: each is legal and computes the model, at every size that it works on, with
// batches, chunks and steps of fewer tokens than ranks; and what each of its rules is for shows when it is left out.
#include <gtest/gtest.h>

#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

const SmallModel kGrouped{"llama", 8, 2, 8, 40, 53, 257, 2, true};
const SmallModel kUneven{"qwen2", 9, 3, 8, 40, 53, 257, 2};
const SmallModel kWindowed{"mistral", 8, 4, 8, 40, 53, 259, 2, false, true, 4};
const SmallModel kFused{"gpt2", 8, 8, 8, 64, 53, 83, 2};

struct Shipped {
  const char* plan;
  bool two_axes = false;
};
void PrintTo(const Shipped& given, std::ostream* out) { *out << given.plan; }

std::vector<Mesh> meshes(const Shipped& given) {
  if (!given.two_axes) return {line(1), line(2), line(3), line(4), line(8)};
  std::vector<Mesh> grids;
  for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {1, 2}, {3, 1}, {2, 2}, {2, 4}, {4, 2}, {3, 2}})
    grids.push_back(Mesh{{{"tpx", x}, {"tpy", y}}});
  return grids;
}

std::vector<Step> some_steps(std::int64_t vocab) {
  std::vector<Step> steps{prefill({5, 1, 3}, vocab)};
  steps.push_back(step_of(Phase::prefill, 1, {{2, 3, 4}, {3, 0, 2}}, vocab));
  steps.push_back(step_of(Phase::decode, 0, {{0, 5, 1}, {2, 7, 1}}, vocab));
  steps.push_back(step_of(Phase::decode, 1, {{1, 1, 1}}, vocab));
  return steps;
}

class ShippedPlan : public ::testing::TestWithParam<Shipped> {};
INSTANTIATE_TEST_SUITE_P(All, ShippedPlan,
                         ::testing::Values(Shipped{"megatron"}, Shipped{"megatron_sp"},
                                           Shipped{"vocab_replicated"}, Shipped{"attention_dp"},
                                           Shipped{"tp2d", true}, Shipped{"row_first"},
                                           Shipped{"column_gather"}, Shipped{"kv_replicated"},
                                           Shipped{"replicated"}),
                         [](const auto& test) { return std::string(test.param.plan); });

TEST_P(ShippedPlan, ComputesTheModel) {
  const Registry ops = builtin_ops();
  const Plan plan = load_plan(GetParam().plan);
  std::vector<Model> models;
  for (const SmallModel& shape : {kGrouped, kUneven, kWindowed, kFused})
    models.push_back(make_model(shape));
  for (const char* name : {"tiny-qwen3", "tiny-olmo2", "tiny-phi3"})
    models.push_back(load_model(name));
  for (const Model& model : models) {
    const std::vector<Step> steps = some_steps(model.config().vocab_size);
    const Ran one = run(model, load_plan("replicated"), line(1), steps, ops);
    for (const Mesh& mesh : meshes(GetParam())) {
      SCOPED_TRACE(model.config().model_type + " on " + to_string(mesh));
      const Ran many = run(model, plan, mesh, steps, ops);
      for (const Finding& finding : many.program.findings)
        ADD_FAILURE() << finding.rule << " at " << finding.tap;
      expect_same_values(one, many, summation_limit(model.config()));
    }
  }
}

// ---- a plan's rule left out or put wrongly ----

/// One entry of one section: other steps, or, empty, none at all. Where there is no such entry it is added.
struct Mistake {
  const char *plan, *family, *entry, *steps;
  const char *rule, *tap;  // the first finding
};
void PrintTo(const Mistake& given, std::ostream* out) {
  *out << given.plan << " of " << given.family << ", " << given.entry << ": \"" << given.steps << '"';
}

constexpr Mistake kMistakes[] = {
    // Tokens.
    {"megatron_sp", "llama", "layers.*.self_attn.{q,k,v}_proj.in", "",
     "tokens_into_column_parallel", "layers.0.input_layernorm"},
    {"megatron_sp", "llama", "embed_tokens.out", "all_reduce(sum, tp)", "tokens_differ",
     "embed_tokens"},
    {"megatron_sp", "llama", "layers.*.self_attn.o_proj.out", "all_reduce(sum, tp)",
     "tokens_differ", "layers.0.self_attn.o_proj"},
    {"megatron_sp", "llama", "lm_head.in", "", "tokens_into_column_parallel", "norm"},
    {"megatron_sp", "gpt2", "wpe.out", "", "tokens_differ", "wpe"},
    {"megatron_sp", "gpt2", "h.*.mlp.c_proj.out", "reduce_scatter(sum, sequence, tp)",
     "tokens_differ", "h.0.mlp.c_proj"},
    // Sequences.
    {"attention_dp", "llama", "layers.*.mlp.{gate,up}_proj.in", "all_gather(tokens, tp)",
     "collective_misplaced", "layers.0.post_attention_layernorm"},
    {"attention_dp", "llama", "layers.*.mlp.{gate,up}_proj.in", "", "tokens_into_column_parallel",
     "layers.0.post_attention_layernorm"},
    {"attention_dp", "llama", "embed_tokens.out", "reduce_scatter(sum, tokens, tp)",
     "tokens_differ", "embed_tokens"},
    {"attention_dp", "llama", "layers.*.self_attn.k_proj.out", "all_gather(sequence, tp)",
     "placements_differ", "layers.0.self_attn.v_proj"},
    {"attention_dp", "gpt2", "lm_head.in", "", "tokens_into_column_parallel", "ln_f"},
    // Two axes.
    {"tp2d", "llama", "layers.*.*_layernorm.stat", "", "statistic_over_shard", "embed_tokens"},
    {"tp2d", "llama", "layers.*.mlp.{gate,up}_proj.out", "", "bias_on_partial",
     "layers.0.mlp.gate_proj"},
    {"tp2d", "llama", "layers.*.mlp.down_proj.out", "all_reduce(sum, tpx)", "collective_misplaced",
     "layers.0.mlp.down_proj.partial"},
    {"tp2d", "gpt2", "wpe", "", "placements_differ", "wpe"},
    {"tp2d", "gpt2", "h.*.ln_{1,2}.in", "", "statistic_over_shard", "wpe.resid"},
    // Sums and gathers.
    {"row_first", "llama", "layers.*.self_attn.o_proj.in", "", "row_parallel_needs_shard",
     "layers.0.self_attn.attn"},
    {"row_first", "llama", "layers.*.self_attn.{q,k,v}_proj.out", "", "bias_on_partial",
     "layers.0.self_attn.q_proj"},
    {"row_first", "gpt2", "lm_head.out", "", "output_not_replicated", "lm_head"},
    {"column_gather", "llama", "layers.*.mlp.down_proj.in", "", "sum_over_shard",
     "layers.0.mlp.act"},
    {"column_gather", "llama", "layers.*.self_attn.o_proj.out", "all_reduce(sum, tp)",
     "collective_misplaced", "layers.0.self_attn.o_proj.partial"},
    {"column_gather", "gpt2", "h.*.attn.c_proj.in", "", "sum_over_shard", "h.0.attn.attn"},
    {"kv_replicated", "llama", "layers.*.self_attn.o_proj.out", "", "bias_on_partial",
     "layers.0.self_attn.o_proj"},
    {"kv_replicated", "gpt2", "h.*.attn.c_proj.in", "", "row_parallel_needs_shard", "h.0.attn.attn"},
    {"vocab_replicated", "gpt2", "wte.out", "all_reduce(sum, tp)", "collective_misplaced",
     "wte.partial"},
};

Plan with(const Mistake& mistake) {
  Plan plan = load_plan(mistake.plan);
  PlanSection& section = plan.families.at(mistake.family);
  const auto is_it = [&](const auto& rule) { return rule.pattern == mistake.entry; };
  const std::size_t left_out = std::erase_if(section.collectives, is_it) +
                               std::erase_if(section.weights, is_it);
  const std::string steps = mistake.steps;
  EXPECT_EQ(left_out, steps.empty() ? 1u : left_out) << "the plan has no such entry";
  if (steps.empty()) return plan;
  const std::string text = fmt::format(
      R"json({{"name": "one", "mesh": ["{}"], "weights": {{}}, "collectives": {{"{}": "{}"}}}})json",
      fmt::join(plan.mesh, "\", \""), mistake.entry, steps);
  section.collectives.push_back(parse_plan(text, "one.json").families.at("").collectives[0]);
  return plan;
}

class EveryPlanMistake : public ::testing::TestWithParam<Mistake> {};
INSTANTIATE_TEST_SUITE_P(ShippedPlans, EveryPlanMistake, ::testing::ValuesIn(kMistakes));

TEST_P(EveryPlanMistake, BreaksItsRule) {
  const Mistake& mistake = GetParam();
  const Plan plan = with(mistake);
  const Mesh mesh = plan.mesh.size() == 2 ? Mesh{{{"tpx", 2}, {"tpy", 2}}} : line(2);
  const Registry ops = builtin_ops();
  const bool fused = std::string(mistake.family) == "gpt2";
  const Program program = program_of(shapes(fused ? kFused : kGrouped), plan, mesh, ops);
  ASSERT_FALSE(program.findings.empty());
  EXPECT_EQ(program.findings.front().rule, mistake.rule);
  EXPECT_EQ(program.findings.front().tap, mistake.tap);
  EXPECT_FALSE(program.findings.front().sentence.empty());
}

// What one phase keeps the other must find.
TEST(ShippedPlans, APhaseMayNotPlaceTheCacheElsewhere) {
  const Registry ops = builtin_ops();
  const Plan plan = tp_plan(
      "", R"json("embed_tokens.out": "slice(sequence, tp)", "lm_head.in": "all_gather(sequence, tp)")json",
      R"json(, "phase": {"decode": {"embed_tokens.out": [], "lm_head.in": []}})json");
  const Program program = program_of(shapes(kGrouped), plan, line(2), ops);
  ASSERT_FALSE(program.findings.empty());
  EXPECT_EQ(program.findings.front().rule, "cache_moves");
  EXPECT_EQ(program.findings.front().tap, "layers.0.self_attn.k_cache");
  EXPECT_EQ(program.findings.front().met, "R");
  EXPECT_EQ(program.findings.front().required, "S(sequence)");
  EXPECT_TRUE(program_of(shapes(kGrouped), plan, line(1), ops).findings.empty());
}

}  // namespace
}  // namespace shardcheck
