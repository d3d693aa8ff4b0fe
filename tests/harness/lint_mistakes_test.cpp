// SPDX-License-Identifier: Apache-2.0
// One plan per mistake, in every family: lint names exactly the causes that were planted, and none twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/quantisation_groups.hpp"
#include "model/sources.hpp"
#include "tests/harness/planted_plans.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Model shapes_of(const std::string& model) {
  ModelOptions options;
  options.shapes_only = true;
  return load_model(model, options);
}

MeshLint linted(const Planted& planted) {
  return lint(shapes_of(planted.model), planted_plan(planted), {planted_mesh(planted)},
              builtin_ops(), planted.options)
      .meshes[0];
}

class EveryMistake : public ::testing::TestWithParam<Planted> {};
std::string name_of(const ::testing::TestParamInfo<Planted>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Families, EveryMistake, ::testing::ValuesIn(planted_in_every_family()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Rules, EveryMistake, ::testing::ValuesIn(planted_by_rule()), name_of);

TEST_P(EveryMistake, IsReportedOnceAndAlone) {
  const Planted& planted = GetParam();
  const MeshLint mesh = linted(planted);
  std::string text;
  for (const LintFinding& entry : mesh.findings) {
    const Finding& f = entry.finding;
    text += fmt::format("{} {} {}: met {}, required {}, fix {}; {}\n", f.rule, f.op, f.tap, f.met,
                        f.required, f.fix, f.sentence);
    EXPECT_FALSE(f.sentence.empty());
    EXPECT_FALSE(f.axis.empty());
    const PlacementRule* rule = find_placement_rule(f.rule);
    ASSERT_NE(rule, nullptr) << f.rule;
    EXPECT_EQ(entry.severity, rule->severity);
  }
  EXPECT_THAT(rules_and_taps(mesh), ElementsAreArray(planted.expected)) << text;
}

// On one rank there is nothing to get wrong.
TEST_P(EveryMistake, IsNoneOnOneRank) {
  Planted planted = GetParam();
  for (int& size : planted.sizes) size = 1;
  try {
    EXPECT_THAT(rules_and_taps(linted(planted)), ::testing::IsEmpty());
  } catch (const std::exception& error) {
    // Explicit ranges are for the size that they name.
    EXPECT_THAT(error.what(), HasSubstr("lists ranges for 2 ranks only"));
  }
}

/// Columns stored in groups of 32.
class Quantised final : public WeightSource {
 public:
  explicit Quantised(const std::vector<Module>& modules) : whole_(synthetic_source(3, modules)) {}
  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return whole_->shape(tensor);
  }
  DType dtype(std::string_view) const override { return DType::q4_1; }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    whole_->read_rows(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    whole_->read_rows(tensor, begin, end, out);
  }

 private:
  std::unique_ptr<const WeightSource> whole_;
};

Model quantised_llama() {
  Config config = parse_config(R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 96,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"})",
                               "quantised.json");
  auto source = std::make_unique<Quantised>(modules(config));
  return Model(std::move(config), std::move(source));
}

std::vector<LintFinding> groups_at(const std::string& cut, int ranks, const LintOptions& options = {}) {
  Planted planted{"", "", "megatron", "llama", {ranks}, {}, {}, {}};
  planted.edit = [&cut](Json& weights, Json&) {
    weights["layers.*.mlp.down_proj"] = {{"tp", cut}};
  };
  const Plan plan = planted_plan(planted);
  const LintReport report = lint(quantised_llama(), plan, {planted_mesh(planted)}, builtin_ops(),
                                 options);
  std::vector<LintFinding> groups;
  for (const LintFinding& entry : report.meshes[0].findings)
    if (entry.finding.rule.find("group_cut") != std::string::npos) groups.push_back(entry);
  return groups;
}

TEST(QuantisationGroups, ACutOfRowsIsANoteWithTheSizesThatKeepThemWhole) {
  const std::vector<LintFinding> notes = groups_at("shard(in)", 2);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].severity, Severity::note);
  EXPECT_EQ(notes[0].finding.rule, "dequantised_group_cut");
  EXPECT_EQ(notes[0].finding.tap, "layers.*.mlp.down_proj");
  EXPECT_THAT(notes[0].finding.sentence, HasSubstr("column 80 lies inside a group of 32"));
  EXPECT_THAT(notes[0].finding.sentence, HasSubstr("sizes that keep groups whole: 1, 5"));
}

TEST(QuantisationGroups, ACutByGroupIsCleanAndAnErrorWhereARangeStraysFromIt) {
  for (const int ranks : {2, 3, 4}) EXPECT_TRUE(groups_at("shard(in by group)", ranks).empty());
  const auto stray = [](ResolvedPlan& plan) {
    ModulePlacement& down = plan.weights.at("layers.1.mlp.down_proj");
    down.cols[0][0].end -= 16;
    down.cols[1][0].begin -= 16;
  };
  const std::vector<LintFinding> errors = groups_at("shard(in by group)", 2, {stray, nullptr});
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].severity, Severity::error);
  EXPECT_EQ(errors[0].finding.rule, "quantisation_group_cut");
  EXPECT_EQ(errors[0].finding.tap, "layers.1.mlp.down_proj");
}

TEST(QuantisationGroups, RanksThatKeepWeightsQuantisedMayNotCutThem) {
  Planted planted{"", "", "megatron", "llama", {3}, {}, {}, {}};
  planted.edit = [](Json&, Json&) {};
  const Model model = quantised_llama();
  const ResolvedPlan plan = resolve(planted_plan(planted), model, planted_mesh(planted));
  EXPECT_EQ(quantisation_groups(model, plan)[0].rule, "dequantised_group_cut");
  const std::vector<Finding> kept = quantisation_groups(model, plan, true);
  ASSERT_FALSE(kept.empty());
  for (const Finding& finding : kept) EXPECT_EQ(finding.rule, "quantisation_group_cut");
  EXPECT_TRUE(quantisation_groups(shapes_of("tiny-llama"), plan).empty());
}

TEST(Lint, NamesTheStylesThatItCannotCheck) {
  Planted planted{"", "tiny-llama", "replicated", "", {2}, {}, {}, {}};
  Json json = Json::parse(read_text(find_shipped("plans", "replicated")), nullptr, true, true);
  json["unchecked"]["layers.*.mlp.experts"] = "moe_tp_experts";
  const Plan plan = parse_plan(json.dump(), "planted.json");
  const LintReport report = lint(shapes_of("tiny-llama"), plan, {planted_mesh(planted)}, builtin_ops());
  EXPECT_TRUE(report.passed());
  EXPECT_THAT(rules_and_taps(report.meshes[0]),
              ::testing::ElementsAre("unchecked_style layers.*.mlp.experts"));
}

// A rule that nothing here can break might as well not exist.
TEST(Rules, EachIsBrokenByAPlanOfThisFile) {
  std::set<std::string> broken{"quantisation_group_cut", "dequantised_group_cut", "unchecked_style"},
      known;  // by the tests above
  for (const std::vector<Planted>& all : {planted_in_every_family(), planted_by_rule()}) {
    for (const Planted& planted : all)
      for (const std::string& expected : planted.expected)
        broken.insert(expected.substr(0, expected.find(' ')));
  }
  for (const PlacementRule& rule : kPlacementRules) known.emplace(rule.name);
  EXPECT_EQ(broken, known);
}

}  // namespace
}  // namespace shardcheck::testing
