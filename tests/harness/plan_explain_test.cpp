// SPDX-License-Identifier: Apache-2.0
// A plan in words: who holds what, what is sent, alike layers folded.
#include "harness/plan_explain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shardcheck::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

PlanExplanation explained(const std::string& model, const Plan& plan, const Mesh& mesh) {
  ModelOptions shapes;
  shapes.shapes_only = true;
  return explain(load_model(model, shapes), plan, mesh, builtin_ops());
}
PlanExplanation megatron(const std::string& model, int ranks) {
  return explained(model, load_plan("megatron"), Mesh{{{"tp", ranks}}});
}

const ExplainedModule& module(const PlanExplanation& e, const std::string& path) {
  for (const ExplainedGroup& group : e.groups) {
    for (const ExplainedModule& module : group.modules) {
      if (module.path == path) return module;
    }
  }
  throw std::runtime_error("no " + path);
}

TEST(PlanExplain, WhoHoldsWhat) {
  const PlanExplanation e = megatron("smollm2-135m", 4);  // 9 q heads, 3 kv heads
  ASSERT_THAT(e.groups, SizeIs(3));
  EXPECT_THAT(e.groups[1].layers, SizeIs(30));
  const ExplainedModule& q = module(e, "layers.*.self_attn.q_proj");
  EXPECT_EQ(q.cut, "shard(out by head)");
  EXPECT_EQ(q.shares[0].words, "rows 0-191, q heads 0-2");
  EXPECT_EQ(q.shares[3].words, "rows 448-575, q heads 7-8");
  EXPECT_EQ(module(e, "layers.*.self_attn.k_proj").shares[2].words, "rows 64-191, kv heads 1-2");
  EXPECT_EQ(module(e, "layers.*.self_attn.o_proj").shares[1].words, "columns 192-319, q heads 3-4");
  EXPECT_EQ(module(e, "norm").shares[1].words, "whole");
}

TEST(PlanExplain, WhatIsSent) {
  const PlanExplanation e = megatron("llama-3-8b", 8);
  const ExplainedModule& down = module(e, "layers.*.mlp.down_proj");
  ASSERT_THAT(down.steps, SizeIs(1));
  EXPECT_EQ(down.steps[0].words, "all_reduce(sum, tp)");
  EXPECT_EQ(down.steps[0].phases, "prefill, decode");
  EXPECT_EQ(down.steps[0].bytes_per_token, 2 * 4096);
  // 32 layers of two, the embedding's, and the logits' gather.
  EXPECT_THAT(explain_text(e),
              HasSubstr("Sent in decode: 66 collectives, payload " +
                        std::to_string(65 * 2 * 4096 + 2 * 128256) + " bytes per token"));
  EXPECT_THAT(explain_text(e), HasSubstr("Weights: a rank holds 12.5 % of the model's"));
  EXPECT_THAT(explain_text(e), HasSubstr("Layers 0-31, 32 alike"));
}

// On two axes a group's tensor is a part of the value; a norm's statistic is one f32, and stands at .stat whatever the
// norm is called.
TEST(PlanExplain, StatisticsAndGroups) {
  const Mesh mesh{{{"tpx", 2}, {"tpy", 2}}};
  const PlanExplanation e = explained("tiny-llama", load_plan("tp2d"), mesh);
  const ExplainedModule& norm = module(e, "layers.*.input_layernorm");
  ASSERT_THAT(norm.steps, SizeIs(1));
  EXPECT_EQ(norm.steps[0].point, "layers.*.input_layernorm.stat");
  EXPECT_EQ(norm.steps[0].bytes_per_token, 4);
  EXPECT_EQ(module(e, "embed_tokens").steps.at(0).bytes_per_token, 2 * 48 / 2);
  const std::string text = explain_text(e);
  // Layers: 4 statistics of the norms with the last one's, q, k, v, o, gate, up and down; embedding and logits.
  const int layer = 2 * 4 + 2 * (32 + 16 + 16 + 24 + 68 + 68 + 24);
  EXPECT_THAT(text, HasSubstr("Sent in decode: 31 collectives, payload " +
                              std::to_string(3 * layer + 4 + 2 * (24 + 160 + 320)) +
                              " bytes per token at 2 bytes an element, 4 in a statistic."));
  EXPECT_THAT(text, HasSubstr("adds the shares of each group of ranks"));
  EXPECT_THAT(text, HasSubstr("embed_tokens is cut both ways"));
}

TEST(PlanExplain, AStepThatStandsTwiceCountsTwiceInBothPhases) {
  const Plan plan = parse_plan(R"json({"name": "p", "mesh": ["tp"],
      "collectives": {"layers.*.input_layernorm.out": ["slice(tokens, tp)", "all_gather(tokens, tp)",
                                                       "slice(tokens, tp)", "all_gather(tokens, tp)"]}})json",
                               "p.json");
  const PlanExplanation e = explained("tiny-llama", plan, Mesh{{{"tp", 2}}});
  const ExplainedModule& norm = module(e, "layers.*.input_layernorm");
  ASSERT_THAT(norm.steps, SizeIs(4));
  for (const ExplainedStep& step : norm.steps) {
    EXPECT_EQ(step.point, "layers.*.input_layernorm.out");
    EXPECT_EQ(step.phases, "prefill, decode");
  }
  EXPECT_THAT(explain_text(e), HasSubstr("Sent in decode: 6 collectives"));
}

TEST(PlanExplain, OneRankHoldsAllAndSendsNothing) {
  const std::string text = explain_text(megatron("tiny-gpt2", 1));
  EXPECT_THAT(text, HasSubstr("Sent in prefill: 0 collectives, payload 0 bytes"));
  EXPECT_THAT(text, HasSubstr("a rank holds 100.0 %"));
  EXPECT_THAT(text, Not(HasSubstr("parallel:")));
}

TEST(PlanExplain, APlanOfItsOwnForOneLayerIsNotFolded) {
  const Plan plan = parse_plan(R"json({"name": "p", "mesh": ["tp"],
      "weights": {"layers.1.mlp.{gate,up}_proj": {"tp": "shard(out by chunk)"},
                  "layers.1.mlp.down_proj": {"tp": "shard(in by chunk)"}},
      "collectives": {"layers.1.mlp.down_proj.out": "all_reduce(sum, tp)"},
      "phase": {"decode": {"layers.1.mlp.down_proj.out": ["reduce_scatter(sum, features, tp)",
                                                          "all_gather(features, tp)"]}},
      "unchecked": {"layers.*.mlp.experts": "moe_tp_experts"}})json",
                               "p.json");
  const PlanExplanation e = explained("tiny-llama", plan, Mesh{{{"tp", 3}}});
  ASSERT_THAT(e.groups, SizeIs(5));
  EXPECT_THAT(e.groups[2].layers, ElementsAre(1));
  EXPECT_EQ(e.broken_rules, 0u);
  const std::string text = explain_text(e);
  EXPECT_THAT(text, HasSubstr("out: all_reduce(sum, tp) in prefill, 96 B"));
  EXPECT_THAT(text, HasSubstr("out: reduce_scatter(sum, features, tp) in decode, 96 B"));
  EXPECT_THAT(text, HasSubstr("mlp.gate_proj and mlp.up_proj are column-parallel:"));
  EXPECT_THAT(text, HasSubstr("Not checked: layers.*.mlp.experts, \"moe_tp_experts\""));
}

TEST(PlanExplain, SaysThatAPlanIsNotLegal) {
  const Plan plan = parse_plan(R"json({"name": "p", "mesh": ["tp"],
      "weights": {"layers.*.self_attn.q_proj": {"tp": "shard(out by chunk)"}}})json",
                               "p.json");
  const PlanExplanation e = explained("smollm2-135m", plan, Mesh{{{"tp", 2}}});
  EXPECT_GT(e.broken_rules, 0u);
  EXPECT_EQ(module(e, "layers.*.self_attn.q_proj").shares[0].words, "rows 0-287, cuts a q head");
  EXPECT_THAT(explain_text(e), HasSubstr("placement rule"));
}

TEST(PlanExplain, Json) {
  const auto json = nlohmann::json::parse(
      explain_json({megatron("tiny-llama", 2), megatron("tiny-llama", 3)}));
  EXPECT_EQ(json.at("schema"), "shardcheck.plan/1");
  ASSERT_EQ(json.at("cells").size(), 2u);
  const nlohmann::json& cell = json.at("cells")[1];
  EXPECT_EQ(cell.at("mesh"), nlohmann::json({{"tp", 3}}));
  for (const nlohmann::json& entry : cell.at("modules")) {
    EXPECT_EQ(entry.at("rows").size(), 3u);
    if (entry.at("path") != "layers.*.mlp.down_proj") continue;
    EXPECT_EQ(entry.at("layers"), "0-2");
    EXPECT_EQ(entry.at("columns")[1], nlohmann::json({{46, 91}}));
    EXPECT_EQ(entry.at("steps")[0].at("bytes_per_token"), 96);
  }
}

}  // namespace
}  // namespace shardcheck::testing
