// SPDX-License-Identifier: Apache-2.0
// A stranger's GoogleTest suite: a report that passes, and the text of one that doesn't.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include "harness/matcher.hpp"

namespace {

using shardcheck::passes;

shardcheck::VerifyOptions bf16_at(int tp) {
  shardcheck::VerifyOptions options;
  options.meshes = {shardcheck::Mesh{{{"tp", tp}}}};
  options.dtypes = {shardcheck::DType::bf16};
  options.phases = {shardcheck::Phase::prefill};
  options.inputs.tokens = 8;
  return options;
}

constexpr const char* kWithoutASum = R"json({ "name": "without-a-sum", "mesh": ["tp"],
  "weights": { "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"},
               "layers.*.mlp.down_proj":      {"tp": "shard(in)"} },
  "collectives": {} })json";

TEST(Equivalence, TheModelUnderMegatron) {
  const shardcheck::Model model = shardcheck::load_model("tiny-llama");
  EXPECT_THAT(verify(model, shardcheck::load_plan("megatron"), bf16_at(2), shardcheck::builtin_parts()),
              passes());
}

TEST(Equivalence, AFailureShowsTheReport) {
  const shardcheck::Model model = shardcheck::load_model("tiny-llama");
  const shardcheck::Plan plan = shardcheck::parse_plan(kWithoutASum, "without-a-sum.json");
  shardcheck::VerifyOptions options = bf16_at(2);
  options.force = true;
  static shardcheck::VerifyReport report;
  report = verify(model, plan, options, shardcheck::builtin_parts());
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(report, passes()), "layers.0.mlp.down_proj");
  EXPECT_THAT(report, testing::Not(passes()));
}

TEST(Equivalence, AnIllegalPlanShowsItsRule) {
  const shardcheck::Model model = shardcheck::load_model("tiny-llama");
  const shardcheck::Plan plan = shardcheck::parse_plan(kWithoutASum, "without-a-sum.json");
  static shardcheck::VerifyReport verified;
  verified = verify(model, plan, bf16_at(2), shardcheck::builtin_parts());
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(verified, passes()), "partial_plus_replicated");
  shardcheck::ProveOptions options;
  options.meshes = bf16_at(2).meshes;
  options.phases = {shardcheck::Phase::prefill};
  static shardcheck::ProveReport proved;
  proved = prove(model, plan, options, shardcheck::builtin_parts());
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(proved, passes()), "partial_plus_replicated");
}

}  // namespace
