// SPDX-License-Identifier: Apache-2.0
// From graph, plan and mesh to instructions: names of taps, where collectives and biases stand, and one plan for every
// placement rule that breaks it.
#include "sharded/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharded/op.hpp"
#include "tests/model/input_error.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Program program_of(const SmallModel& shape, const Plan& plan, const Mesh& mesh, const Registry& ops) {
  const Model model = shapes(shape);
  return build_program(model, resolve(plan, model, mesh), ops);
}

/// "linear layers.0.mlp.down_proj.partial" and the like, in order.
std::vector<std::string> listing(const Program& program, Phase phase = Phase::prefill) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.instructions.at(phase)) {
    const std::string what = instruction.op == nullptr ? to_string(instruction.collective)
                                                       : std::string(instruction.op->name());
    lines.push_back(what + " " + instruction.site + (instruction.adds_bias ? " +bias" : ""));
  }
  return lines;
}

std::string placement_of(const Program& program, const std::string& tap) {
  for (const Value& value : program.values) {
    if (value.name == tap) return to_string(value.layout, program.mesh);
  }
  return "no value " + tap;
}

TEST(Program, ListsMegatronOnLlama) {
  const Registry ops = builtin_ops();
  SmallModel shape;
  shape.layers = 1;
  const Program program = program_of(shape, megatron(), line(2), ops);
  const std::vector<std::string> expected{"embedding embed_tokens.partial",
                                          "all_reduce(sum, tp) embed_tokens",
                                          "rms_norm layers.0.input_layernorm",
                                          "linear layers.0.self_attn.q_proj",
                                          "linear layers.0.self_attn.k_proj",
                                          "linear layers.0.self_attn.v_proj",
                                          "rope layers.0.self_attn.q_rot",
                                          "rope layers.0.self_attn.k_rot",
                                          "cache layers.0.self_attn.k_cache",
                                          "attention layers.0.self_attn.attn",
                                          "linear layers.0.self_attn.o_proj.partial",
                                          "all_reduce(sum, tp) layers.0.self_attn.o_proj",
                                          "add layers.0.self_attn.resid",
                                          "rms_norm layers.0.post_attention_layernorm",
                                          "linear layers.0.mlp.gate_proj",
                                          "linear layers.0.mlp.up_proj",
                                          "gate layers.0.mlp.act",
                                          "linear layers.0.mlp.down_proj.partial",
                                          "all_reduce(sum, tp) layers.0.mlp.down_proj",
                                          "add layers.0",
                                          "rms_norm norm",
                                          "linear lm_head.partial",
                                          "all_gather(vocab, tp) lm_head"};
  EXPECT_THAT(listing(program), ElementsAreArray(expected));
  EXPECT_THAT(listing(program, Phase::decode), ElementsAreArray(expected));
  EXPECT_TRUE(program.findings.empty());
  EXPECT_FALSE(program.forced_shapes);
  EXPECT_EQ(placement_of(program, "embed_tokens.partial"), "P(sum)");
  EXPECT_EQ(placement_of(program, "layers.0.self_attn.k_cache"), "S(features)");
  EXPECT_EQ(placement_of(program, "layers.0.mlp.act"), "S(features)");
  EXPECT_EQ(placement_of(program, "lm_head.partial"), "S(features)");
  EXPECT_EQ(placement_of(program, "lm_head"), "R");
}

TEST(Program, AddsARowParallelBiasOnceAfterTheReduction) {
  const Registry ops = builtin_ops();
  const Program program = program_of({"gpt2", 5, 5, 8, 40, 53, 83, 1}, megatron(), line(2), ops);
  EXPECT_THAT(
      listing(program),
      ElementsAre("embedding wte.partial", "all_reduce(sum, tp) wte", "embedding wpe",
                  "add wpe.resid", "layer_norm h.0.ln_1", "linear h.0.attn.c_attn +bias",
                  "split h.0.attn.c_attn.q", "split h.0.attn.c_attn.k", "split h.0.attn.c_attn.v",
                  "cache h.0.attn.k_cache", "attention h.0.attn.attn",
                  "linear h.0.attn.c_proj.partial", "all_reduce(sum, tp) h.0.attn.c_proj.reduced",
                  "bias h.0.attn.c_proj", "add h.0.attn.resid", "layer_norm h.0.ln_2",
                  "linear h.0.mlp.c_fc +bias", "unary h.0.mlp.act", "linear h.0.mlp.c_proj.partial",
                  "all_reduce(sum, tp) h.0.mlp.c_proj.reduced", "bias h.0.mlp.c_proj", "add h.0",
                  "layer_norm ln_f", "linear lm_head.partial", "all_gather(vocab, tp) lm_head"));
  EXPECT_TRUE(program.findings.empty());
  EXPECT_EQ(placement_of(program, "h.0.attn.c_proj.partial"), "P(sum)");
  EXPECT_EQ(placement_of(program, "h.0.attn.c_proj.reduced"), "R");
}

TEST(Program, SaysWhichValuesSeveralRanksMayOwn) {
  const Registry ops = builtin_ops();
  const Program program = program_of({}, megatron(), line(4), ops);
  for (const Value& value : program.values) {
    const bool kv = value.name.find("k_proj") != std::string::npos ||
                    value.name.find("v_proj") != std::string::npos ||
                    value.name.ends_with("k_rot") || value.name.ends_with("_cache");
    EXPECT_EQ(value.layout.may_overlap, kv) << value.name;
  }
}

TEST(Program, ReducesInTheWireDtypeAndKeepsEverythingElseInStorage) {
  const Registry ops = builtin_ops();
  const Program program = program_of({"gpt2", 5, 5, 8, 40, 53, 83, 1}, megatron(), line(2), ops);
  for (const Value& value : program.values) {
    const bool partial = value.name.ends_with(".partial") && value.layout.any_partial();
    EXPECT_EQ(value.dtype, partial ? ValueDType::wire : ValueDType::storage) << value.name;
  }
}

TEST(Program, HasNeitherPartialsNorCollectivesInAGroupOfOne) {
  const Registry ops = builtin_ops();
  for (const char* type : {"llama", "gpt2"}) {
    const Program program = program_of({type, 5, 5, 8, 40, 53, 83, 2, true}, megatron(), line(1), ops);
    for (const Instruction& instruction : program.instructions.at(Phase::prefill)) {
      EXPECT_NE(instruction.op, nullptr) << instruction.site;
      EXPECT_THAT(instruction.site, ::testing::Not(HasSubstr(".partial")));
      EXPECT_THAT(instruction.site, ::testing::Not(HasSubstr(".reduced")));
      const Module* module = program.find_module(instruction.site);
      const bool linear = module != nullptr && module->kind == ModuleKind::linear;
      EXPECT_EQ(instruction.adds_bias, linear && module->has_bias) << instruction.site;
    }
  }
}

TEST(Program, CollectsAnInputThatModulesShareOnce) {
  const Registry ops = builtin_ops();
  SmallModel shape;
  shape.layers = 1;
  const std::string cuts = std::string(kAttentionCuts) + "," + kMlpCuts;
  const std::string sums =
      R"json("embed_tokens.out": "slice(tokens, tp)",
             "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, tp)",
             "layers.*.self_attn.o_proj.out": "reduce_scatter(sum, tokens, tp)",
             "layers.*.mlp.gate_proj.in": "all_gather(tokens, tp)",
             "layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
             "norm.in": "all_gather(tokens, tp)")json";
  const Program program = program_of(shape, tp_plan(cuts, sums), line(3), ops);
  EXPECT_TRUE(program.findings.empty());
  const std::vector<std::string> lines = listing(program);
  EXPECT_THAT(lines,
              ::testing::Contains("all_gather(tokens, tp) layers.0.self_attn.q_proj.in").Times(1));
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("k_proj.in")).Times(0));
  EXPECT_THAT(lines, ::testing::Contains("all_gather(tokens, tp) layers.0.mlp.gate_proj.in").Times(1));
  EXPECT_EQ(placement_of(program, "layers.0.input_layernorm"), "S(tokens)");
  EXPECT_EQ(placement_of(program, "layers.0.self_attn.q_proj.in"), "R");
  EXPECT_EQ(placement_of(program, "layers.0.self_attn.resid"), "S(tokens)");
  EXPECT_EQ(placement_of(program, "norm"), "R");
}

TEST(Program, RefusesTwoWaysToCollectOneInput) {
  const Registry ops = builtin_ops();
  const Plan plan = tp_plan(std::string(kAttentionCuts),
                            R"json("layers.*.self_attn.q_proj.in": "all_gather(tokens, tp)",
                                   "layers.*.self_attn.v_proj.in": "all_reduce(sum, tp)")json");
  const std::string message = input_error([&] { program_of({}, plan, line(2), ops); });
  EXPECT_THAT(message, HasSubstr("layers.0.self_attn.v_proj.in"));
  EXPECT_THAT(message, HasSubstr("collected already"));
}

TEST(Program, ChangesWithThePhaseWhereThePlanDoes) {
  const Registry ops = builtin_ops();
  SmallModel shape;
  shape.layers = 1;
  const Plan plan = tp_plan(
      kMlpCuts, R"json("layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
                                             "layers.*.mlp.down_proj.in": [],
                                             "layers.*.self_attn.o_proj.out": "slice(tokens, tp)",
                                             "embed_tokens.out": "slice(tokens, tp)",
                                             "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, tp)",
                                             "layers.*.mlp.{gate,up}_proj.in": "all_gather(tokens, tp)",
                                             "norm.in": "all_gather(tokens, tp)")json",
      R"json(, "phase": {"decode": {"layers.*.mlp.down_proj.out": "all_reduce(sum, tp)",
                                    "layers.*.self_attn.o_proj.out": [], "embed_tokens.out": [], "norm.in": [],
                                    "layers.*.self_attn.{q,k,v}_proj.in": [],
                                    "layers.*.mlp.{gate,up}_proj.in": []}})json");
  const Program program = program_of(shape, plan, line(2), ops);
  EXPECT_TRUE(program.findings.empty());
  EXPECT_THAT(listing(program), ::testing::Contains(HasSubstr("reduce_scatter(sum, tokens, tp)")));
  const std::vector<std::string> decode = listing(program, Phase::decode);
  EXPECT_THAT(decode, ::testing::Contains("all_reduce(sum, tp) layers.0.mlp.down_proj"));
  EXPECT_THAT(decode, ::testing::Contains(HasSubstr("tokens, ")).Times(0));
}

/// A plan that breaks one rule.
struct Broken {
  const char* name;
  SmallModel model;
  std::string weights, collectives;
  int ranks;
  // The first finding.
  std::string rule, op, tap, met, required, fix;
  bool forced_shapes;  // whether shapes may not fit when it is run all the same
};
void PrintTo(const Broken& given, std::ostream* out) { *out << given.name; }

class EveryRule : public ::testing::TestWithParam<Broken> {};

std::string both(std::string_view a, std::string_view b) {
  return std::string(a) + ", " + std::string(b);
}

std::vector<Broken> broken_plans() {
  const SmallModel llama{"llama", 9, 3, 8, 40, 53, 257, 1};
  const SmallModel biased{"llama", 9, 3, 8, 40, 53, 257, 1, true};
  const SmallModel gpt2{"gpt2", 5, 5, 8, 40, 53, 83, 1};
  const std::string q = "layers.*.self_attn.q_proj", o = "layers.0.self_attn.o_proj",
                    down = "layers.0.mlp.down_proj";
  const std::string reduce = "all_reduce(sum, tp)";
  const auto entry = [](const std::string& key, const std::string& value) {
    return "\"" + key + "\": " + value;
  };
  const auto tp = [](const std::string& cut) { return "{\"tp\": \"" + cut + "\"}"; };
  const auto at = [](const std::string& point, const std::string& step) {
    return "\"" + point + "\": \"" + step + "\"";
  };
  const auto fix = [&](const std::string& module, const std::string& step) {
    return at(module + ".out", step);
  };
  return {
      {"partial_into_norm", llama, kEmbedCut, "", 2, "partial_into_nonlinear", "rms_norm",
       "embed_tokens", "P(sum)", "R", fix("embed_tokens", reduce), false},
      {"partial_into_layer_norm", gpt2,
       R"json("wte": {"tp": "shard(vocab)"}, "wpe": {"tp": "shard(vocab)"})json", "", 2,
       "partial_into_nonlinear", "layer_norm", "wpe.resid", "P(sum)", "R",
       at("h.0.ln_1.in", reduce), false},
      {"partial_into_rope", llama, entry("layers.*.self_attn.{q,k,v}_proj", tp("shard(in)")),
       entry(q + ".in", "\"slice(features, tp)\""), 2, "partial_into_nonlinear", "rope",
       "layers.0.self_attn.q_proj", "P(sum)", "R", fix("layers.0.self_attn.q_proj", reduce), false},
      {"partial_into_cache", llama, entry("layers.*.self_attn.v_proj", tp("shard(in)")),
       entry("layers.*.self_attn.v_proj.in", "\"slice(features, tp)\""), 2,
       "partial_into_nonlinear", "cache", "layers.0.self_attn.v_proj", "P(sum)", "R",
       fix("layers.0.self_attn.v_proj", reduce), false},
      {"partial_into_gate", llama, entry("layers.*.mlp.{gate,up}_proj", tp("shard(in)")),
       entry("layers.*.mlp.gate_proj.in", "\"slice(features, tp)\""), 2, "partial_into_nonlinear",
       "gate", "layers.0.mlp.gate_proj", "P(sum)", "R", fix("layers.0.mlp.gate_proj", reduce), false},
      {"partial_into_activation", gpt2, entry("h.*.mlp.c_fc", tp("shard(in)")),
       entry("h.*.mlp.c_fc.in", "\"slice(features, tp)\""), 2, "bias_on_partial", "linear",
       "h.0.mlp.c_fc", "P(sum)", "R", fix("h.0.mlp.c_fc", reduce), false},
      {"partial_plus_residual", llama, kMlpCuts, "", 2, "partial_plus_replicated", "add", down,
       "P(sum)", "R", fix(down, reduce), false},
      {"partial_residual", llama, both(kAttentionCuts, kMlpCuts), kMlpSum, 3,
       "partial_plus_replicated", "add", o, "P(sum)", "R", fix(o, reduce), false},
      {"bias_on_partial", biased, kMlpCuts, "", 2, "bias_on_partial", "linear", down, "P(sum)", "R",
       fix(down, reduce), false},
      {"column_parallel_of_a_cut_input", llama, entry(q, tp("shard(out by head)")),
       entry(q + ".in", "\"slice(features, tp)\""), 2, "sum_over_shard", "linear",
       "layers.0.self_attn.q_proj.in", "S(features)", "R",
       R"json(in weights "layers.0.self_attn.q_proj": {"tp": "shard(in)"}, and "layers.0.self_attn.q_proj.out": "all_reduce(sum, tp)")json",
       true},
      {"row_parallel_of_a_whole_input", llama, entry("layers.*.mlp.down_proj", tp("shard(in)")),
       kMlpSum, 2, "row_parallel_needs_shard", "linear", "layers.0.mlp.act", "R", "S(features)",
       at(down + ".in", "slice(features, tp)"), true},
      {"uncut_linear_of_a_cut_input", llama, entry("layers.*.mlp.{gate,up}_proj", tp("shard(out)")),
       "", 2, "sum_over_shard", "linear", "layers.0.mlp.act", "S(features)", "R",
       at(down + ".in", "all_gather(features, tp)"), true},
      {"other_ranges", llama,
       both(entry("layers.*.mlp.{gate,up}_proj", tp("shard(out)")),
            entry("layers.*.mlp.down_proj",
                  R"json({"tp": {"shard": "in", "ranges": {"2": [[[0,20]],[[20,53]]]}}})json")),
       kMlpSum, 2, "ranges_differ", "linear", "layers.0.mlp.act", "S(features)", "S(features)", "",
       true},
      {"gate_and_up_differ", llama,
       both(entry("layers.*.mlp.gate_proj", tp("shard(out)")),
            entry("layers.*.mlp.up_proj",
                  R"json({"tp": {"shard": "out", "ranges": {"2": [[[0,20]],[[20,53]]]}}})json")),
       "", 2, "ranges_differ", "gate", "layers.0.mlp.up_proj", "S(features)", "S(features)", "", true},
      {"only_gate_is_cut", llama, entry("layers.*.mlp.gate_proj", tp("shard(out)")), "", 2,
       "placements_differ", "gate", "layers.0.mlp.gate_proj", "S(features)", "R",
       fix("layers.0.mlp.gate_proj", "all_gather(features, tp)"), true},
      {"head_is_cut", llama, entry(q, tp("shard(out)")), "", 2, "head_is_cut", "rope",
       "layers.0.self_attn.q_proj", "S(features)", "R",
       fix("layers.0.self_attn.q_proj", "all_gather(features, tp)"), true},
      {"head_is_cut_in_a_fused_tensor", gpt2, entry("h.*.attn.c_attn", tp("shard(out)")), "", 2,
       "head_is_cut", "attention", "h.0.attn.c_attn.q", "S(features)", "R",
       "all_gather(features, tp)", true},
      {"kv_head_missing", llama,
       both(entry(q, tp("shard(out by head)")),
            entry("layers.*.self_attn.{k,v}_proj",
                  R"json({"tp": {"shard": "out", "by": "kv_head", "ranges": {"2": [[[0,1]],[[1,3]]]}}})json")),
       "", 2, "kv_head_missing", "attention", "layers.0.self_attn.k_cache", "S(features)", "R",
       R"json(in weights "layers.0.self_attn.k_proj": {"tp": "shard(out by kv_head)"})json", true},
      {"values_of_other_kv_heads", llama,
       both(entry(q, tp("shard(out by head)")), entry("layers.*.self_attn.v_proj", tp("shard(out by kv_head)"))), "", 2,
       "placements_differ", "attention", "layers.0.self_attn.k_cache", "R", "S(features)",
       R"json(in weights "layers.0.self_attn.k_proj": {"tp": "shard(out by kv_head)"})json", true},
      {"values_of_more_kv_heads", llama,
       both(entry(q, tp("shard(out by head)")),
            both(entry("layers.*.self_attn.k_proj", tp("shard(out by kv_head)")),
                 entry("layers.*.self_attn.v_proj",
                       R"json({"tp": {"shard": "out", "by": "kv_head", "ranges": {"2": [[[0,2]],[[0,3]]]}}})json"))),
       "", 2, "ranges_differ", "attention", "layers.0.self_attn.v_cache", "S(features)", "S(features)",
       R"json(in weights "layers.0.self_attn.v_proj": {"tp": "shard(out by kv_head)"})json", true},
      {"tokens_into_column_parallel", llama, kMlpCuts,
       both(kMlpSum, R"json("layers.*.mlp.gate_proj.in": "slice(tokens, tp)")json"), 2,
       "tokens_into_column_parallel", "linear", "layers.0.mlp.gate_proj.in", "S(tokens)", "R",
       R"json("layers.0.mlp.gate_proj.in": [])json", true},
      {"tokens_into_row_parallel", llama, entry("layers.*.mlp.down_proj", tp("shard(in)")),
       both(kMlpSum, R"json("layers.*.mlp.down_proj.in": "slice(tokens, tp)")json"), 2,
       "tokens_into_row_parallel", "linear", "layers.0.mlp.down_proj.in", "S(tokens)", "S(features)",
       at(down + ".in", "slice(features, tp)"), true},
      {"tokens_into_attention", llama, "",
       R"json("layers.*.self_attn.q_proj.out": "slice(tokens, tp)")json", 2,
       "tokens_into_attention", "attention", "layers.0.self_attn.q_rot", "S(tokens)", "R",
       "all_gather(tokens, tp)", true},
      {"norm_over_a_shard", llama, entry("embed_tokens", tp("shard(features)")), "", 2,
       "statistic_over_shard", "rms_norm", "embed_tokens", "S(features)", "R",
       fix("embed_tokens", "all_gather(features, tp)"), true},
      {"statistic_is_cut", llama, "", R"json("norm.stat": "slice(features, tp)")json", 2, "statistic_over_shard", "rms_apply",
       "norm.stat", "S(features)", "R", R"json("norm.stat": [])json", true},
      {"norm_weight_is_cut", llama, entry("norm", tp("shard(features)")), "", 2,
       "statistic_over_shard", "rms_norm", "layers.0", "R", "R", "", true},
      {"logits_are_cut", llama, kHeadCut, "", 2, "output_not_replicated", "output", "lm_head",
       "S(features)", "R", fix("lm_head", "all_gather(vocab, tp)"), true},
      {"logits_are_partial", llama, entry("lm_head", tp("shard(in)")),
       R"json("lm_head.in": "slice(features, tp)")json", 2, "output_not_replicated", "output",
       "lm_head", "P(sum)", "R", fix("lm_head", reduce), false},
      {"sum_of_whole_values", llama, "", kMlpSum, 2, "collective_misplaced", reduce,
       down + ".partial", "R", "P(sum)", R"json("layers.0.mlp.down_proj.out": [])json", false},
      {"gather_of_whole_values", llama, "", kHeadGather, 2, "collective_misplaced",
       "all_gather(vocab, tp)", "lm_head.partial", "R", "S(features)", R"json("lm_head.out": [])json", true},
      {"gather_of_partial_values", llama, kMlpCuts,
       R"json("layers.*.mlp.down_proj.out": "all_gather(features, tp)")json", 2,
       "collective_misplaced", "all_gather(features, tp)", down + ".partial", "P(sum)",
       "S(features)", fix(down, reduce), true},
      {"maximum_of_a_sum", llama, kMlpCuts,
       R"json("layers.*.mlp.down_proj.out": "all_reduce(max, tp)")json", 2, "collective_misplaced",
       "all_reduce(max, tp)", down + ".partial", "P(sum)", "P(max)", fix(down, reduce), false},
      {"slice_of_a_shard", llama, kHeadCut,
       R"json("lm_head.out": ["slice(vocab, tp)", "all_gather(vocab, tp)"])json", 2,
       "collective_misplaced", "slice(vocab, tp)", "lm_head.partial", "S(features)", "R",
       fix("lm_head", "all_gather(vocab, tp)"), true},
      {"exchange_of_whole_values", llama, "",
       R"json("layers.*.self_attn.o_proj.in": "all_to_all(tokens, features, tp)")json", 2,
       "collective_misplaced", "all_to_all(tokens, features, tp)", "layers.0.self_attn.attn", "R",
       "S(features)", R"json("layers.0.self_attn.o_proj.in": [])json", true},
      {"broadcast_of_a_shard", llama, kHeadCut, R"json("lm_head.out": "broadcast(0, tp)")json", 2,
       "collective_misplaced", "broadcast(0, tp)", "lm_head.partial", "S(features)", "R",
       fix("lm_head", "all_gather(features, tp)"), true},
  };
}

INSTANTIATE_TEST_SUITE_P(Rules, EveryRule, ::testing::ValuesIn(broken_plans()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryRule, IsFoundWithItsTapAndItsFix) {
  const Broken& given = GetParam();
  const Registry ops = builtin_ops();
  const Plan plan = tp_plan(given.weights, given.collectives);
  const Program program = program_of(given.model, plan, line(given.ranks), ops);
  ASSERT_FALSE(program.findings.empty());
  const Finding& first = program.findings[0];
  EXPECT_EQ(first.rule, given.rule);
  EXPECT_EQ(first.op, given.op);
  EXPECT_EQ(first.tap, given.tap);
  EXPECT_EQ(first.axis, "tp");
  EXPECT_EQ(first.met, given.met);
  EXPECT_EQ(first.required, given.required);
  EXPECT_EQ(first.fix, given.fix);
  EXPECT_FALSE(first.sentence.empty());
  EXPECT_EQ(program.forced_shapes, given.forced_shapes);
  // The same plan on one rank breaks nothing: there is nothing to cut.
  EXPECT_TRUE(program_of(given.model, plan, line(1), ops).findings.empty());
}

// A bias is added as soon as its sum is whole, of the rows that the rank's weight has.
TEST(Program, FeaturesAreGatheredAfterTheirSumIfThereIsABias) {
  const Registry ops = builtin_ops();
  for (const bool bias : {false, true}) {
    const Model model = shapes({.biases = bias});
    const auto rules = [&](const std::string& steps) {
      const Plan plan = parse_plan(R"json({"name": "two", "mesh": ["x", "y"], "weights": {
          "layers.*.mlp.up_proj": {"x": "shard(in)", "y": "shard(out)"}}, "collectives": {
          "layers.*.mlp.up_proj.in": "slice(features, x)", "layers.*.mlp.up_proj.out": [)json" + steps + "]}}", "two.json");
      std::vector<std::string> found;
      for (const Finding& f : build_program(model, resolve(plan, model, Mesh{{{"x", 2}, {"y", 3}}}), ops).findings)
        found.push_back(f.rule);
      return found;
    };
    EXPECT_TRUE(rules(R"json("all_reduce(sum, x)", "all_gather(features, y)")json").empty());
    const std::vector<std::string> other = rules(R"json("all_gather(features, y)", "all_reduce(sum, x)")json");
    EXPECT_EQ(other, bias ? std::vector<std::string>(2, "ranges_differ") : std::vector<std::string>());  // of two layers
  }
}

// What an inner axis cut of an outer one's rows can't be joined along the outer one: the group's parts are no stretch.
TEST(Program, RowsAreJoinedAlongTheInnerAxisFirst) {
  const Registry ops = builtin_ops();
  const auto findings = [&](const std::string& steps) {
    const Plan plan = parse_plan("{\"name\": \"two\", \"mesh\": [\"x\", \"y\"], \"collectives\": {\"norm.out\": [" + steps + "]}}",
                                 "two.json");
    const Model model = shapes({});
    return build_program(model, resolve(plan, model, Mesh{{{"x", 2}, {"y", 3}}}), ops).findings;
  };
  for (const char* legal : {R"json("slice(tokens, [x, y])", "all_gather(tokens, y)", "all_gather(tokens, x)")json",
                            R"json("slice(tokens, [x, y])", "all_gather(tokens, [x, y])")json",
                            R"json("slice(tokens, x)", "slice(sequence, y)", "all_gather(tokens, x)", "all_gather(sequence, y)")json",
                            R"json("slice(sequence, x)", "slice(tokens, y)", "all_gather(tokens, y)", "all_gather(sequence, x)")json"})
    EXPECT_TRUE(findings(legal).empty()) << legal;
  for (const char* broken : {R"json("slice(tokens, [x, y])", "all_gather(tokens, x)", "all_gather(tokens, y)")json",
                             R"json("slice(sequence, [x, y])", "all_gather(sequence, x)", "all_gather(sequence, y)")json",
                             R"json("slice(sequence, x)", "slice(tokens, y)", "all_gather(sequence, x)", "all_gather(tokens, y)")json",
                             R"json("slice(tokens, [x, y])", "all_to_all(features, tokens, x)", "all_gather(tokens, y)", "all_gather(features, x)")json"}) {
    const std::vector<Finding> found = findings(broken);
    ASSERT_FALSE(found.empty()) << broken;
    EXPECT_EQ(found[0].rule, "collective_misplaced");
    EXPECT_EQ(found[0].axis, "x");
    EXPECT_EQ(found[0].sentence, "y cuts what x left of the rows: join y first, or both in one group");
  }
  const std::vector<Finding> found = findings(R"json("slice(tokens, [x, y])", "all_gather(tokens, x)", "all_gather(tokens, y)")json");
  EXPECT_EQ(found[0].fix, R"json("norm.out": ["slice(tokens, [x, y])", "all_gather(tokens, [x, y])", "all_gather(tokens, y)"])json");
}

// One kv head, or every head on every rank: what differs is how the plan puts it, not what a rank holds.
TEST(Program, TakesKeysAndValuesThatHoldTheSameHeadsHoweverTheyAreCut) {
  const Registry ops = builtin_ops();
  const Plan plan = tp_plan(R"json("layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
                                   "layers.*.self_attn.v_proj": {"tp": "shard(out by kv_head)"},
                                   "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"})json",
                            kAttentionSum);
  EXPECT_TRUE(program_of({"llama", 4, 1, 8, 40, 53, 257, 1}, plan, line(2), ops).findings.empty());
  EXPECT_EQ(program_of({"llama", 4, 2, 8, 40, 53, 257, 1}, plan, line(2), ops).findings.size(), 1u);
}

TEST_P(EveryRule, IsGoneWithItsFix) {
  const Broken& given = GetParam();
  if (given.fix.empty() || given.fix[0] != '"') return;  // no entry of the plan would repair it
  const Registry ops = builtin_ops();
  const Finding first = program_of(given.model, tp_plan(given.weights, given.collectives),
                                   line(given.ranks), ops)
                            .findings.at(0);
  // A phase's entry stands in place of what the plan says there.
  const std::string rest = fmt::format(
      R"json(, "phase": {{"prefill": {{{0}}}, "decode": {{{0}}}}})json", first.fix);
  const Program repaired = program_of(given.model, tp_plan(given.weights, given.collectives, rest),
                                      line(given.ranks), ops);
  for (const Finding& finding : repaired.findings)
    EXPECT_FALSE(finding.rule == first.rule && finding.tap == first.tap && finding.op == first.op)
        << first.fix;
}

}  // namespace
}  // namespace shardcheck
