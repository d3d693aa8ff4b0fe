// SPDX-License-Identifier: Apache-2.0
// The grammar of plans: everything it allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/shipped.hpp"
#include "sharded/plan.hpp"
#include "tests/model/input_error.hpp"

namespace shardcheck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A plan with this object of cuts under "weights": {"m": ...} on the axes a and b.
WeightCut cut(const std::string& json) {
  const Plan plan = parse_plan(
      R"({"name": "p", "mesh": ["a", "b"], "weights": {"m": {"a": )" + json + "}}}", "p");
  return plan.families.at("").weights.at(0).cuts.at("a");
}

std::vector<CollectiveStep> steps(const std::string& json) {
  const Plan plan = parse_plan(
      R"({"name": "p", "mesh": ["a", "b"], "collectives": {"m.out": )" + json + "}}", "p");
  return plan.families.at("").collectives.at(0).steps;
}

TEST(PlanText, HoldsEveryCut) {
  EXPECT_FALSE(cut("\"replicate\"").sharded);
  const std::pair<const char*, PlanDim> dims[] = {{"out", PlanDim::out},
                                                  {"in", PlanDim::in},
                                                  {"vocab", PlanDim::vocab},
                                                  {"features", PlanDim::features}};
  const std::pair<const char*, CutUnit> units[] = {{"row", CutUnit::row},
                                                   {"head", CutUnit::head},
                                                   {"kv_head", CutUnit::kv_head},
                                                   {"group", CutUnit::group},
                                                   {"chunk", CutUnit::chunk}};
  for (const auto& [word, dim] : dims) {
    const WeightCut plain = cut(std::string("\"shard(") + word + ")\"");
    EXPECT_TRUE(plain.sharded);
    EXPECT_EQ(plain.dim, dim);
    EXPECT_EQ(plain.unit, CutUnit::row);
    EXPECT_TRUE(plain.ranges.empty());
    for (const auto& [by, unit] : units) {
      const WeightCut united = cut(std::string("\" shard ( ") + word + "  by " + by + " ) \"");
      EXPECT_EQ(united.dim, dim);
      EXPECT_EQ(united.unit, unit);
    }
  }
}

TEST(PlanText, HoldsExplicitRanges) {
  const WeightCut given = cut(R"({"shard": "out", "by": "head",
      "ranges": {"4": [[[0,3]],[[3,5]],[[5,7]],[[7,9]]], "2": [[[0,2],[4,9]],[[2,4]]], "1": [[]]}})");
  EXPECT_TRUE(given.sharded);
  EXPECT_EQ(given.unit, CutUnit::head);
  EXPECT_EQ(given.ranges.size(), 3u);
  EXPECT_THAT(given.ranges.at(4),
              ElementsAre(Ranges{{0, 3}}, Ranges{{3, 5}}, Ranges{{5, 7}}, Ranges{{7, 9}}));
  EXPECT_THAT(given.ranges.at(2), ElementsAre(Ranges{{0, 2}, {4, 9}}, Ranges{{2, 4}}));
  EXPECT_THAT(given.ranges.at(1), ElementsAre(Ranges{}));
  EXPECT_EQ(cut(R"({"shard": "in"})").dim, PlanDim::in);
}

TEST(PlanText, HoldsEveryStep) {
  for (const std::string text :
       {"all_reduce(sum, a)", "all_reduce(max, b)", "reduce_scatter(sum, tokens, a)",
        "reduce_scatter(sum, features, a)", "all_gather(tokens, a)", "all_gather(sequence, a)",
        "all_gather(features, a)", "all_gather(head, a)", "all_gather(kv_head, a)",
        "all_gather(vocab, [a, b])", "all_to_all(tokens, head, a)",
        "all_to_all(features, sequence, [b, a])", "broadcast(0, a)", "broadcast(15, [a, b])",
        "slice(features, b)", "slice(tokens, [a, b])"}) {
    const std::vector<CollectiveStep> parsed = steps("\"" + text + "\"");
    ASSERT_EQ(parsed.size(), 1u) << text;
    EXPECT_EQ(to_string(parsed[0]), text);
  }
  EXPECT_EQ(to_string(steps(R"json(" all_gather( vocab,[a ,b] ) ")json").at(0)),
            "all_gather(vocab, [a, b])");
  EXPECT_EQ(to_string(steps(R"json("all_reduce(sum, [a])")json").at(0)), "all_reduce(sum, a)");
}

TEST(PlanText, HoldsListsOfSteps) {
  const std::vector<CollectiveStep> two = steps(
      R"json(["all_reduce(sum, a)", "all_gather(features, b)"])json");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].kind, CollectiveStep::Kind::all_reduce);
  EXPECT_EQ(two[1].axes, (std::vector<std::string>{"b"}));
  EXPECT_TRUE(steps("[]").empty());
}

TEST(PlanText, MayHaveCommentsFamiliesAndPhases) {
  const Plan plan = parse_plan(R"json(// one line
    { "name": "p", /* a
    block */ "mesh": ["dp", "tp"],
    "families": {
      "llama": {"weights": {"q": {"tp": "shard(out)", "dp": "replicate"}}, // both axes
                "collectives": {"q.out": "all_gather(features, tp)"},
                "phase": {"decode": {"q.out": []}, "prefill": {"collectives": {"k.out": "all_reduce(sum, dp)"}}}},
      "gpt2": {} } })json",
                               "p.json");
  EXPECT_EQ(plan.name, "p");
  EXPECT_EQ(plan.origin, "p.json");
  EXPECT_THAT(plan.mesh, ElementsAre("dp", "tp"));
  ASSERT_EQ(plan.families.size(), 2u);
  const PlanSection& llama = plan.families.at("llama");
  EXPECT_EQ(llama.weights.at(0).pattern, "q");
  EXPECT_EQ(llama.weights.at(0).cuts.size(), 2u);
  EXPECT_EQ(llama.collectives.at(0).pattern, "q.out");
  EXPECT_EQ(llama.phase.at(Phase::decode).at(0).pattern, "q.out");
  EXPECT_TRUE(llama.phase.at(Phase::decode).at(0).steps.empty());
  EXPECT_EQ(llama.phase.at(Phase::prefill).at(0).pattern, "k.out");
  EXPECT_TRUE(plan.families.at("gpt2").weights.empty());
}

TEST(PlanText, KeepsRulesInTheirOrder) {
  const Plan plan = parse_plan(R"json({"name": "p", "mesh": ["a"], "weights": {"z": {"a": "shard(out)"},
                                   "b": {"a": "shard(in)"}, "m": {"a": "replicate"}}})json",
                               "p");
  std::vector<std::string> patterns;
  for (const WeightRule& rule : plan.families.at("").weights) patterns.push_back(rule.pattern);
  EXPECT_THAT(patterns, ElementsAre("z", "b", "m"));
}

TEST(ShippedPlans, ParseUnderTheirNames) {
  const std::vector<std::string> shipped = shipped_names("plans");
  EXPECT_THAT(shipped, ::testing::IsSupersetOf({"megatron", "megatron_sp", "vocab_replicated",
                                                "attention_dp", "tp2d", "row_first", "column_gather",
                                                "kv_replicated", "replicated"}));
  for (const std::string& name : shipped) {
    const Plan plan = load_plan(name);
    EXPECT_EQ(plan.name, name);
    if (name == "replicated") continue;
    for (const std::string family : {"llama", "olmo2", "phi3", "gpt2"})
      EXPECT_TRUE(plan.families.contains(family)) << name << " for " << family;
  }
  EXPECT_THAT(input_error([] { load_plan("megatorn"); }), HasSubstr("\"megatron\""));
}

}  // namespace
}  // namespace shardcheck
