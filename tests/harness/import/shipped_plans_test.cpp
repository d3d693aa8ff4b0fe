// SPDX-License-Identifier: Apache-2.0
// The plans that Hugging Face ships: all are read, and those of families that are known here are linted, proved and
// verified.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness/lint.hpp"
#include "harness/prove.hpp"
#include "model/shipped.hpp"
#include "tests/harness/import/import_models.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::string& shipped_text() {
  static const std::string text = read_text(std::filesystem::path(SHARDCHECK_SOURCE_DIR) /
                                            "fixtures/imports/hf-tp-plans.json");
  return text;
}

ImportedPlan shipped(const std::string& name, const Model* model = nullptr, bool repaired = false) {
  ImportOptions options;
  options.select = name;
  options.model = model;
  options.repair = repaired;
  return import_plan(shipped_text(), "hf-tp-plans.json", options);
}

LintReport linted(const Model& model, const Plan& plan, const std::vector<int>& sizes) {
  std::vector<Mesh> meshes;
  for (const int size : sizes) meshes.push_back(tp(size));
  return lint(model, plan, meshes, builtin_ops());
}

std::vector<std::string> rules_of(const LintReport& report, Severity severity = Severity::error) {
  std::vector<std::string> rules;
  for (const MeshLint& mesh : report.meshes) {
    for (const LintFinding& finding : mesh.findings) {
      if (finding.severity == severity)
        rules.push_back(finding.finding.rule + " " + finding.finding.tap);
    }
  }
  return rules;
}

TEST(ShippedPlans, AllAreRead) {
  const nlohmann::json plans = nlohmann::json::parse(shipped_text()).at("plans");
  ASSERT_THAT(plans, SizeIs(25));
  for (const auto& [name, plan] : plans.items()) {
    const ImportedPlan read = shipped(name);
    const PlanSection& section = read.plan.families.at("");
    EXPECT_EQ(section.weights.size() + section.unchecked.size(), plan.at("tp").size()) << name;
    EXPECT_EQ(read.plan.name, name);
    const Plan back = written_and_read(read);
    EXPECT_EQ(back.families, read.plan.families) << name;
    // Nothing is dropped: every key is a rule or is kept by name.
    for (const auto& [pattern, style] : plan.at("tp").items()) {
      const bool rule = std::any_of(section.weights.begin(), section.weights.end(),
                                    [&](const WeightRule& r) { return r.pattern == pattern; });
      const bool kept = std::any_of(
          section.unchecked.begin(), section.unchecked.end(),
          [&](const UncheckedRule& r) { return r.pattern == pattern && r.style == style; });
      EXPECT_NE(rule, kept) << name << " " << pattern;
    }
  }
}

TEST(ShippedPlans, WhatNeedsExpertsOrOtherModulesIsKeptByName) {
  const ImportedPlan mixtral = shipped("MixtralConfig");
  const std::vector<UncheckedRule>& kept = mixtral.plan.families.at("").unchecked;
  EXPECT_THAT(kept,
              ElementsAre(UncheckedRule{"layers.*.mlp.experts.gate_up_proj", "packed_colwise"},
                          UncheckedRule{"layers.*.mlp.experts.down_proj", "rowwise"},
                          UncheckedRule{"layers.*.mlp.experts", "moe_tp_experts"}));
  EXPECT_THAT(mixtral.notes, Contains(HasSubstr("it needs experts")));
  const ImportedPlan neox = shipped("GPTNeoXConfig");
  EXPECT_THAT(neox.plan.families.at("").weights, IsEmpty());
  EXPECT_THAT(neox.plan.families.at("").unchecked, SizeIs(5));
  // lint says so with each run of it.
  const Model llama = import_model({});
  EXPECT_THAT(rules_of(linted(llama, mixtral.plan, {2}), Severity::note),
              ElementsAre("unchecked_style layers.*.mlp.experts.gate_up_proj",
                          "unchecked_style layers.*.mlp.experts.down_proj",
                          "unchecked_style layers.*.mlp.experts"));
}

struct KnownFamily {
  const char* plan;
  ImportShape shape;
};

class ShippedPlanOf : public ::testing::TestWithParam<KnownFamily> {};

// Heads and kv heads divide by each size, as transformers needs it.
TEST_P(ShippedPlanOf, IsRightWhereHeadsDivide) {
  const KnownFamily& family = GetParam();
  const Model model = import_model(family.shape);
  const Plan plan = shipped(family.plan, &model).plan;
  const LintReport report = linted(model, plan, {2, 4, 8});
  EXPECT_THAT(rules_of(report), IsEmpty()) << lint_text(report);

  ProveOptions proof;
  proof.meshes = {tp(2), tp(4), tp(8)};
  proof.phases = {Phase::prefill, Phase::decode};
  const VerifyParts parts = builtin_parts();
  const ProveReport proved = prove(model, plan, proof, parts);
  EXPECT_TRUE(proved.passed()) << prove_text(proved);
  EXPECT_EQ(proved.cells.size(), 6u);

  VerifyOptions options;
  options.meshes = proof.meshes;
  options.dtypes = {DType::f64};
  options.phases = proof.phases;
  options.inputs.tokens = 9;
  options.inputs.decode_steps = 2;
  EXPECT_TRUE(verify(model, plan, options, parts).passed());
}

INSTANTIATE_TEST_SUITE_P(Families, ShippedPlanOf,
                         ::testing::Values(KnownFamily{"LlamaConfig", {}},
                                           KnownFamily{"MistralConfig", {"mistral"}},
                                           KnownFamily{"Qwen2Config", {"qwen2", 16, 8, 8, 128}},
                                           KnownFamily{"Qwen3Config", {"qwen3"}},
                                           KnownFamily{"Olmo2Config", {"olmo2", 16, 8, 8, 128}},
                                           KnownFamily{"Phi3Config", {"phi3", 16, 8, 8, 128}}),
                         [](const auto& test) { return std::string(test.param.plan); });

// olmo2 and phi3 gather q, k and v, so no cut goes through a head that anybody computes with, whatever divides.
TEST(ShippedPlans, GatheredOnesAreRightAtEverySize) {
  for (const auto& [name, shape] :
       {std::pair<const char*, ImportShape>{"Olmo2Config", {"olmo2", 9, 3, 8, 72, 93, 181}},
        std::pair<const char*, ImportShape>{"Phi3Config", {"phi3", 9, 3, 8, 72, 85, 151}}}) {
    const Model model = import_model(shape);
    const Plan plan = shipped(name, &model).plan;
    EXPECT_THAT(rules_of(linted(model, plan, {2, 3, 5, 8})), IsEmpty()) << name;
    ProveOptions proof;
    proof.meshes = {tp(2), tp(5)};
    proof.phases = {Phase::prefill, Phase::decode};
    EXPECT_TRUE(prove(model, plan, proof, builtin_parts()).passed()) << name;
  }
}

// SmolLM2's 9 heads on 2 ranks: transformers ends there in a reshape.
TEST(ShippedPlans, ColwiseCutsAHeadWhereHeadsDontDivide) {
  ModelOptions shapes;
  shapes.shapes_only = true;
  const Model model = load_model("smollm2-135m", shapes);
  const LintReport report = linted(model, shipped("LlamaConfig", &model).plan, {2});
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(rules_of(report), Contains("head_is_cut layers.*.self_attn.q_proj"));
  EXPECT_THAT(rules_of(report), Contains("head_is_cut layers.*.self_attn.k_proj"));
  const Plan repaired = shipped("LlamaConfig", &model, true).plan;
  EXPECT_THAT(rules_of(linted(model, repaired, {2, 3, 4, 8})), IsEmpty());
}

// Fewer kv heads than ranks: k and v are cut inside a head, q is not.
TEST(ShippedPlans, ColwiseCutsKvHeadsOfWhichThereAreFewerThanRanks) {
  const Model model = import_model({"llama", 16, 4});
  const LintReport report = linted(model, shipped("LlamaConfig", &model).plan, {8});
  EXPECT_THAT(rules_of(report), Contains("head_is_cut layers.*.self_attn.k_proj"));
  EXPECT_THAT(rules_of(report), Not(Contains("head_is_cut layers.*.self_attn.q_proj")));
  EXPECT_THAT(rules_of(linted(model, shipped("LlamaConfig", &model, true).plan, {8})), IsEmpty());
}

// By head, 8 ranks would leave some without a head: what needs no heads, and what has whole ones, is not cut so.
TEST(ShippedPlans, RepairLeavesWhatIsLegalOnMoreRanksThanHeads) {
  const Model model = import_model({"llama", 4, 2});
  const ImportedPlan gathered = imported(R"json({
    "layers.*.self_attn.{q,k,v}_proj": "colwise_gather_output", "layers.*.self_attn.o_proj": "rowwise_split_input"})json",
                                         ImportSource::hf, &model, true);
  const ImportedPlan groups = imported(R"json({"layer_specs": [
    {"patterns": [".*\\.[qkv]_proj"], "partition_type": "column"}, {"patterns": [".*\\.o_proj"], "partition_type": "row"}]})json",
                                       ImportSource::deepspeed, &model, true);
  for (const ImportedPlan* plan : {&gathered, &groups})
    EXPECT_THAT(rules_of(linted(model, plan->plan, {2, 3, 4, 8})), IsEmpty());
}

// DeepSpeed cuts all of attention in as many units as there are kv heads: 40 rows of o in 5 are 16 + 8 + 8 + 8.
TEST(ShippedPlans, DeepSpeedCutsTheRowsOfOByKvHeads) {
  const Model model = import_model({"llama", 10, 5});
  const ImportedPlan plan = imported(R"json({"layer_specs": [
    {"patterns": [".*_proj"], "partition_type": "column", "gather_output": true}]})json",
                                     ImportSource::deepspeed, &model);
  EXPECT_THAT(rules_of(linted(model, written_and_read(plan), {2, 3, 4, 8})), IsEmpty());
  const ResolvedPlan resolved = resolve(plan.plan, model, tp(4));
  EXPECT_EQ(resolved.placement("layers.1.self_attn.o_proj").rows.at(0), (Ranges{{0, 16}}));
  EXPECT_EQ(resolved.placement("layers.1.self_attn.q_proj").rows.at(0), (Ranges{{0, 32}}));
}

TEST(ShippedPlans, RepairSaysWhatItChanged) {
  const Model model = import_model({});
  EXPECT_THAT(shipped("LlamaConfig", &model, true).notes,
              Contains("repaired: layers.*.self_attn.k_proj: shard(out by kv_head) instead of "
                       "shard(out by chunk)"));
  EXPECT_THAT(shipped("LlamaConfig", &model).notes, IsEmpty());
}

}  // namespace
}  // namespace shardcheck::testing
