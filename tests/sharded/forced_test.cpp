// SPDX-License-Identifier: Apache-2.0
// Programs of plans that break a rule, run all the same: what the mistake does to the numbers, and where shapes end it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

TEST(ForcedProgram, ShowsWhatAMissingReductionDoes) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({6}, 257);
  const Ran good = run(model, tp_plan(kMlpCuts, kMlpSum), line(2), {step}, ops);
  const Ran bad = run(model, tp_plan(kMlpCuts, ""), line(2), {step}, ops);
  EXPECT_FALSE(bad.result.ended);
  // The output that stayed partial has no other name, and every rank holds its share.
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(bad.taps->at("layers.0.mlp.down_proj")
                    .ranks[rank]
                    .bitwise_equal(good.taps->at("layers.0.mlp.down_proj.partial").ranks[rank]));
  }
  EXPECT_EQ(to_string(bad.taps->at("layers.0.mlp.down_proj").layout, line(2)),
            "R");  // as which it is consumed
  EXPECT_GT(difference(good.logits(), bad.logits()), 0.1);
  EXPECT_LE(difference(good.taps->whole("layers.0.self_attn.resid"),
                       bad.taps->whole("layers.0.self_attn.resid")),
            summation_limit(model.config()));
}

TEST(ForcedProgram, AddsABiasOncePerRankWhereThePlanAsksForIt) {
  const Registry ops = builtin_ops();
  const Model model = make_model({"llama", 9, 3, 8, 40, 53, 257, 1, true});
  const Ran bad = run(model, tp_plan(kMlpCuts, ""), line(2), {prefill({6}, 257)}, ops);
  const Ran good = run(model, tp_plan(kMlpCuts, kMlpSum), line(2), {prefill({6}, 257)}, ops);
  EXPECT_EQ(bad.program.findings.at(0).rule, "bias_on_partial");
  const std::string tap = "layers.0.mlp.down_proj";
  std::vector<double> bias(40);
  model.read_rows(tap + ".bias", 0, 40, std::span<double>(bias));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::vector<double> partial = good.taps->at(tap + ".partial").ranks[rank].to_f64();
    std::vector<double> expected = partial;
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 40];
    EXPECT_LE(max_difference(expected, bad.taps->at(tap).ranks[rank].to_f64()),
              summation_limit(model.config()) * max_size(expected));
  }
}

// The value that is placed wrongly is made as its consumer takes it, so its producer is where it ends.
TEST(ForcedProgram, EndsAtTheValueWhoseShapesDoNotFit) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const std::string down = R"json("layers.*.mlp.down_proj": {"tp": "shard(in)"})json";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {down, kMlpSum, "layers.0.mlp.act"},
      {R"json("embed_tokens": {"tp": "shard(features)"})json", "", "embed_tokens"},
      {R"json("layers.*.mlp.gate_proj": {"tp": "shard(out)"})json", "", "layers.0.mlp.gate_proj"},
      {R"json("layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"})json", "", "layers.0.mlp.act"},
      {R"json("layers.*.self_attn.q_proj": {"tp": "shard(out)"})json", "",
       "layers.0.self_attn.q_proj"},
      {kHeadCut, "", "lm_head"},
  };
  for (const auto& [weights, collectives, tap] : cases) {
    const Ran ran = run(model, tp_plan(weights, collectives), line(2), {prefill({6}, 257)}, ops);
    EXPECT_TRUE(ran.program.forced_shapes) << tap;
    EXPECT_EQ(ran.program.findings.at(0).tap, tap);
    ASSERT_TRUE(ran.result.ended) << tap;
    EXPECT_EQ(ran.result.ended->site, tap);
    EXPECT_THAT(ran.result.ended->message, ::testing::HasSubstr("[6, ")) << tap;  // the shapes
    EXPECT_THAT(ran.result.ended->ranks, ::testing::Contains(0)) << tap;
    EXPECT_EQ(ran.program.instructions.at(Phase::prefill)
                  .at(static_cast<std::size_t>(ran.result.ended->order))
                  .site,
              tap);
    EXPECT_FALSE(ran.taps->parts().contains({Phase::prefill, 0, tap})) << tap;
  }
}

// A step does what the plan says; where its readers take another value the run ends behind it, and is not put right.
TEST(ForcedProgram, EndsAtAStepThatLeavesWhatItsReadersCannotTake) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const std::string cuts = std::string(kEmbedCut) + ", " + kMlpCuts;
  const std::pair<std::string, std::string> cases[] = {
      {R"json("embed_tokens.out": "all_reduce(sum, tp)",
              "layers.*.mlp.down_proj.out": "reduce_scatter(sum, features, tp)")json",
       "layers.0.mlp.down_proj"},
      {R"json("embed_tokens.out": ["all_reduce(sum, tp)", "slice(tokens, tp)"],
              "layers.*.mlp.down_proj.out": "all_reduce(sum, tp)")json",
       "embed_tokens"},
  };
  for (const auto& [collectives, tap] : cases) {
    const Ran ran = run(model, tp_plan(cuts, collectives), line(2), {prefill({6}, 257)}, ops);
    EXPECT_FALSE(ran.program.findings.empty()) << tap;
    ASSERT_TRUE(ran.result.ended) << tap;
    EXPECT_EQ(ran.result.ended->site, tap);
    EXPECT_THAT(ran.result.ended->message, ::testing::HasSubstr("what reads it takes it as R"));
  }
}

TEST(ForcedProgram, OnlyWastesTrafficWhereWholeValuesAreGathered) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({6}, 257);
  const Ran good = run(model, load_plan("replicated"), line(2), {step}, ops);
  const Ran ran = run(model, tp_plan("", kHeadGather), line(2), {step}, ops);
  EXPECT_EQ(ran.program.findings.at(0).rule, "collective_misplaced");
  EXPECT_FALSE(ran.result.ended);
  EXPECT_EQ(difference(good.logits(), ran.logits()), 0.0);
}

TEST(ForcedProgram, MultipliesWholeValuesThatAreSummed) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Ran ran = run(model, tp_plan("", kMlpSum), line(2), {prefill({6}, 257)}, ops);
  Whole twice = ran.taps->whole("layers.0.mlp.down_proj.partial");
  for (double& value : twice.values) value *= 2.0;
  EXPECT_EQ(difference(twice, ran.taps->whole("layers.0.mlp.down_proj")), 0.0);
}

TEST(ForcedProgram, TakesTheMaximumWhereAPlanAsksForIt) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Plan plan = tp_plan(kMlpCuts, R"json("layers.*.mlp.down_proj.out": "all_reduce(max, tp)")json");
  const Ran ran = run(model, plan, line(2), {prefill({6}, 257)}, ops);
  const Parts& partial = ran.taps->at("layers.0.mlp.down_proj.partial");
  std::vector<double> expected = partial.ranks[0].to_f64();
  const std::vector<double> other = partial.ranks[1].to_f64();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = std::max(expected[i], other[i]);
  EXPECT_EQ(ran.taps->whole("layers.0.mlp.down_proj").values, expected);
}

}  // namespace
}  // namespace shardcheck
