// SPDX-License-Identifier: Apache-2.0
// A collective taken out of megatron.json: refused without --force, and with it named at the module whose output stayed as
// the ranks made it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "harness/lint.hpp"
#include "model/shipped.hpp"
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {
namespace {

using Json = nlohmann::ordered_json;

Json megatron() {
  return Json::parse(read_text(find_shipped("plans", "megatron")), nullptr, true, true);
}

Json& collectives(Json& plan, const std::string& family) {
  return plan["families"][family]["collectives"];
}

/// A collective of megatron that is gone.
struct Removed {
  std::string model, family;
  std::string point;  // the key to remove
  std::string rest;   // a narrower key that stays, for the other layers; empty: none
  std::string tap;    // the module whose output is then wrong
  std::string fix;    // what the finding must propose
  int tp = 2;
};

std::string without(const Removed& removed) {
  Json plan = megatron();
  Json& points = collectives(plan, removed.family);
  const Json step = points.at(removed.point);
  points.erase(removed.point);
  if (!removed.rest.empty()) points[removed.rest] = step;
  return plan.dump();
}

const std::vector<Removed> kRemoved{
    {"tiny-llama", "llama", "embed_tokens.out", "", "embed_tokens",
     "\"embed_tokens.out\": \"all_reduce(sum, tp)\""},
    {"tiny-llama", "llama", "layers.*.self_attn.o_proj.out", "", "layers.0.self_attn.o_proj",
     "\"layers.0.self_attn.o_proj.out\": \"all_reduce(sum, tp)\""},
    {"tiny-llama", "llama", "layers.*.self_attn.o_proj.out", "layers.{0,2}.self_attn.o_proj.out",
     "layers.1.self_attn.o_proj", "\"layers.1.self_attn.o_proj.out\": \"all_reduce(sum, tp)\"", 3},
    {"tiny-llama", "llama", "layers.*.mlp.down_proj.out", "layers.{0,1}.mlp.down_proj.out",
     "layers.2.mlp.down_proj", "\"layers.2.mlp.down_proj.out\": \"all_reduce(sum, tp)\"", 4},
    {"tiny-llama", "llama", "lm_head.out", "", "lm_head",
     "\"lm_head.out\": \"all_gather(vocab, tp)\"", 4},
    {"tiny-llama-bias", "llama", "layers.*.mlp.down_proj.out", "layers.0.mlp.down_proj.out",
     "layers.1.mlp.down_proj", "\"layers.1.mlp.down_proj.out\": \"all_reduce(sum, tp)\"", 3},
    {"tiny-gpt2", "gpt2", "wte.out", "", "wte", "\"wte.out\": \"all_reduce(sum, tp)\"", 3},
    {"tiny-gpt2", "gpt2", "h.*.attn.c_proj.out", "h.1.attn.c_proj.out", "h.0.attn.c_proj",
     "\"h.0.attn.c_proj.out\": \"all_reduce(sum, tp)\""},
    {"tiny-gpt2", "gpt2", "h.*.mlp.c_proj.out", "h.0.mlp.c_proj.out", "h.1.mlp.c_proj",
     "\"h.1.mlp.c_proj.out\": \"all_reduce(sum, tp)\"", 4},
    {"tiny-gpt2", "gpt2", "lm_head.out", "", "lm_head", "\"lm_head.out\": \"all_gather(vocab, tp)\"", 3},
};

TEST(PlantedPlanFaults, RemovedCollectiveIsRefused) {
  for (const Removed& removed : kRemoved) {
    Setting setting;
    setting.model = removed.model;
    setting.tp = removed.tp;
    setting.plan = without(removed);
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting) + removed.tap);
    const VerifyReport report = verified(setting);
    EXPECT_FALSE(report.ran);
    EXPECT_FALSE(report.passed());
    EXPECT_TRUE(report.cells.empty());
    ASSERT_FALSE(report.findings.empty());
    EXPECT_EQ(report.findings[0].tap, removed.tap);
    EXPECT_EQ(report.findings[0].fix, removed.fix);
    EXPECT_EQ(report.findings[0].axis, "tp");
    // The text folds layers with the same finding into one: its fix is then the key that was removed.
    const bool folded = removed.rest.empty();
    const std::string fix = folded ? "\"" + removed.point + "\": \"" : removed.fix;
    EXPECT_THAT(
        findings_text(report.findings, "copy.json"),
        ::testing::AllOf(::testing::HasSubstr("copy.json: " + (folded ? "" : removed.tap + " is ")),
                         ::testing::HasSubstr("fix   " + fix)));
  }
}

TEST(PlantedPlanFaults, ForcedRunNamesTheModuleThatStayedPartial) {
  for (const Removed& removed : kRemoved) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        Setting setting{removed.model, removed.tp, dtype, phase, without(removed)};
        setting.force = true;
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting) + " " + removed.tap);
        const VerifyReport report = verified(setting);
        EXPECT_TRUE(report.ran);
        ASSERT_EQ(report.cells.size(), 1u);
        expect_first(report.cells[0], {removed.tap, all_ranks(removed.tp), {}, Gate::g3});
        EXPECT_THAT(report.cells[0].first->cause, ::testing::HasSubstr(removed.fix));
      }
    }
  }
}

// The same plan on one rank has nothing to reduce: it is legal and passes.
TEST(PlantedPlanFaults, RemovedCollectivePassesOnOneRank) {
  for (const Removed& removed : kRemoved) {
    Setting setting;
    setting.model = removed.model;
    setting.tp = 1;
    setting.plan = without(removed);
    const VerifyReport report = verified(setting);
    EXPECT_TRUE(report.findings.empty());
    EXPECT_TRUE(report.passed());
  }
}

// Missing in decode only, as when a second code path was forgotten: prefill passes.
TEST(PlantedPlanFaults, RemovedInDecodeOnly) {
  Json plan = megatron();
  plan["families"]["llama"]["phase"]["decode"]["layers.1.mlp.down_proj.out"] = Json::array();
  for (const DType dtype : {DType::f64, DType::bf16}) {
    Setting setting{"tiny-llama", 3, dtype, Phase::prefill, plan.dump()};
    setting.force = true;
    EXPECT_TRUE(verified(setting).passed());
    setting.phase = Phase::decode;
    const VerifyReport report = verified(setting);
    ASSERT_EQ(report.cells.size(), 1u);
    expect_first(report.cells[0], {"layers.1.mlp.down_proj", all_ranks(3), Phase::decode, Gate::g3});
  }
}

// A sum of values that are whole already, a copy of one rank's partial: each is refused, and forced it is found at its own
// output.
TEST(PlantedPlanFaults, MisplacedCollectives) {
  struct Misplaced {
    std::string point, step, tap, cause;
  };
  for (const Misplaced& wrong : std::vector<Misplaced>{
           // P times the value.
           {"layers.1.input_layernorm.out", "all_reduce(sum, tp)", "layers.1.input_layernorm",
            "a sum over ranks of a value that isn't partial"},
           // Rank 0's partial sum everywhere.
           {"layers.1.self_attn.o_proj.out", "broadcast(0, tp)", "layers.1.self_attn.o_proj",
            "this step needs a value that every rank holds whole"}}) {
    Json plan = megatron();
    Json& points = collectives(plan, "llama");
    if (wrong.point.find("o_proj") != std::string::npos) {
      points.erase("layers.*.self_attn.o_proj.out");
      points["layers.{0,2}.self_attn.o_proj.out"] = "all_reduce(sum, tp)";
    }
    points[wrong.point] = wrong.step;
    Setting setting;
    setting.plan = plan.dump();
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, wrong.point + " " + wrong.step);
    const VerifyReport refused = verified(setting);
    EXPECT_FALSE(refused.ran);
    EXPECT_FALSE(refused.findings.empty());
    setting.force = true;
    const VerifyReport forced = verified(setting);
    ASSERT_EQ(forced.cells.size(), 1u);
    expect_first(forced.cells[0], {wrong.tap, all_ranks(2), {}, Gate::g3});
    EXPECT_THAT(forced.cells[0].first->cause, ::testing::HasSubstr(wrong.cause));
  }
}

}  // namespace
}  // namespace shardcheck::testing
