// SPDX-License-Identifier: Apache-2.0
// `prove` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program_run.hpp"

namespace shardcheck::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Megatron for a llama without the sum after the MLP.
constexpr const char* kNoSum = R"json({ "name": "no_sum", "mesh": ["tp"],
  "weights": { "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {} })json";

TEST(ProveCommand, EqualPlansExitWith0) {
  const TempFolder folder;
  const std::string file = (folder.path() / "prove.json").string();
  const ProgramResult result = run_program_with(
      "prove tiny-qwen2 --tp 1,2,3 --phase decode --json " + file);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("equal (chance of a false equal < 2^-"));
  EXPECT_THAT(result.out, HasSubstr("3 equal, 0 wrong, 0 unproven"));
  const json report = json::parse(read_all(file));
  EXPECT_EQ(report["schema"], "shardcheck.prove/1");
  EXPECT_EQ(report["verdict"], "passed");
  ASSERT_EQ(report["cells"].size(), 3u);
  EXPECT_LT(report["cells"][2]["log2_chance"], -40.0);
  EXPECT_EQ(report["cells"][2]["mesh"], (json{{"tp", 3}}));
  EXPECT_TRUE(report["cells"][2]["first"].is_null());
}

TEST(ProveCommand, AnIllegalPlanIsProvedOnlyIfForced) {
  const TempFolder folder;
  const std::string plan = folder.write("plan.json", kNoSum).string();
  const std::string words = "prove tiny-llama --tp 2 --phase prefill --plan " + plan;
  const ProgramResult refused_plan = run_program_with(words);
  EXPECT_EQ(refused_plan.exit_code, 1);
  EXPECT_THAT(refused_plan.out, HasSubstr("all_reduce(sum, tp)"));
  EXPECT_THAT(refused_plan.out, HasSubstr("The plan is not legal; --force"));
  const ProgramResult forced = run_program_with(words + " --force");
  EXPECT_EQ(forced.exit_code, 1);
  EXPECT_THAT(forced.out,
              HasSubstr("WRONG at layers.0.mlp.down_proj, first in prefill step 0, all ranks"));
  EXPECT_THAT(forced.out, HasSubstr("0 equal, 1 wrong, 0 unproven"));
}

TEST(ProveCommand, TheModelsOwnShapeWithoutShrinking) {
  const ProgramResult result = run_program_with(
      "prove tiny-gpt2 --tp 2 --phase prefill --shrink off --seeds 1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("hidden 48, 6 heads, 6 kv heads, head_dim 8"));
}

TEST(ProveCommand, BadInput) {
  EXPECT_THAT(refused("prove tiny-llama --shrink much"), HasSubstr("use auto or off"));
  EXPECT_THAT(refused("prove tiny-llama --seeds -1"), HasSubstr("--seeds must lie in 1 to 1000"));
  EXPECT_THAT(refused("prove tiny-llama --tp 16"), HasSubstr("the largest size that works"));
  EXPECT_THAT(refused("prove tiny-llama --json no/such/folder.json"), HasSubstr("doesn't exist"));
}

}  // namespace
}  // namespace shardcheck::testing
