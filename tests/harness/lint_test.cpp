// SPDX-License-Identifier: Apache-2.0
// Plans with a planted mistake, linted: what is found, for which layers, and what it wastes.
#include "harness/lint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "model/shipped.hpp"
#include "sharded/op.hpp"

namespace shardcheck::testing {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

Json megatron() {
  return Json::parse(read_text(find_shipped("plans", "megatron")), nullptr, true, true);
}
Json& points(Json& plan) { return plan["families"]["llama"]["collectives"]; }

LintReport linted(const std::string& plan, const std::vector<int>& sizes = {2},
                  const std::string& model = "tiny-llama") {
  ModelOptions options;
  options.shapes_only = true;
  std::vector<Mesh> meshes;
  for (const int size : sizes) meshes.push_back(Mesh{{{"tp", size}}});
  return lint(load_model(model, options), parse_plan(plan, "planted.json"), meshes, builtin_ops());
}

TEST(Lint, ShippedPlansAreCleanAtEverySize) {
  int programs = 0;
  for (const std::string& name : shipped_names("plans")) {
    const Plan plan = load_plan(name);
    for (const std::string model : {"tiny-llama", "tiny-gpt2", "tiny-qwen2", "tiny-qwen3", "tiny-olmo2", "tiny-phi3"}) {
      const Model shapes = load_model(model, {std::nullopt, true, {}});
      const std::string& type = shapes.config().model_type;
      const bool has_section = plan.families.contains("") || plan.families.contains(type) ||
                               (plan.families.contains("llama") && type.starts_with("qwen"));
      if (!has_section) continue;
      std::vector<Mesh> meshes;
      for (const int size : {1, 2, 3, 4}) {
        Mesh mesh;
        for (const std::string& axis : plan.mesh) mesh.axes.push_back({axis, axis == plan.mesh.back() ? size : 2});
        meshes.push_back(mesh);
      }
      const LintReport report = lint(shapes, plan, meshes, builtin_ops());
      for (const MeshLint& mesh : report.meshes) EXPECT_TRUE(mesh.findings.empty()) << lint_text(report);
      programs += static_cast<int>(report.meshes.size());
    }
  }
  EXPECT_GT(programs, 100);
}

TEST(Lint, LayersAreFoldedAlsoWithGaps) {
  Json plan = megatron();
  const Json step = points(plan)["layers.*.mlp.down_proj.out"];
  points(plan).erase("layers.*.mlp.down_proj.out");
  const LintReport all = linted(plan.dump());
  ASSERT_EQ(all.meshes[0].findings.size(), 1u);
  EXPECT_EQ(all.meshes[0].findings[0].layers, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_THAT(lint_text(all), HasSubstr("layers.0-2.mlp.down_proj is P(sum) on tp"));
  points(plan)["layers.1.mlp.down_proj.out"] = step;
  const LintReport some = linted(plan.dump());
  EXPECT_FALSE(some.passed());
  EXPECT_THAT(lint_text(some), HasSubstr("layers.0, 2.mlp.down_proj is P(sum) on tp"));
  const Json json = Json::parse(lint_json(some));
  EXPECT_EQ(json["verdict"], "failed");
  EXPECT_EQ(json["findings"][0]["layers"], "0, 2");
  EXPECT_EQ(json["findings"][0]["tap"], "layers.*.mlp.down_proj");
  EXPECT_EQ(json["findings"][0]["severity"], "error");
  EXPECT_EQ(json["findings"][0]["bytes"], nullptr);
}

TEST(Lint, LayersText) {
  EXPECT_EQ(layers_text({}), "");
  EXPECT_EQ(layers_text({7}), "7");
  EXPECT_EQ(layers_text({0, 1, 3, 5, 6, 7}), "0-1, 3, 5-7");
}

TEST(Lint, UndoneAndNeedlessMovesAreWarnings) {
  struct Wasteful {
    std::string point;
    std::vector<std::string> steps;
    std::int64_t elements;  // moved for nothing, per token
  };
  const Config config = load_model("tiny-llama", {std::nullopt, true, {}}).config();
  for (const Wasteful& waste : std::vector<Wasteful>{
           {"lm_head.out",
            {"all_gather(vocab, tp)", "slice(vocab, tp)", "all_gather(vocab, tp)"},
            config.vocab_size},
           {"norm.out", {"slice(tokens, tp)", "all_gather(tokens, tp)"}, config.hidden_size},
           {"norm.out", {"broadcast(0, tp)"}, config.hidden_size}}) {
    Json plan = megatron();
    points(plan)[waste.point] = waste.steps;
    const LintReport report = linted(plan.dump(), {2, 1});
    EXPECT_TRUE(report.passed());
    ASSERT_FALSE(report.meshes[0].findings.empty()) << waste.steps[0];
    const LintFinding& finding = report.meshes[0].findings[0];
    EXPECT_EQ(finding.finding.rule, "redundant_collective");
    EXPECT_EQ(finding.severity, Severity::warning);
    EXPECT_EQ(finding.bytes, 2 * waste.elements);
    EXPECT_TRUE(report.meshes[1].findings.empty()) << "a group of one wastes nothing";
  }
}

// A reduce_scatter with its all_gather is an all_reduce: nothing is wasted.
TEST(Lint, AnAllReduceInTwoStepsIsFine) {
  Json plan = megatron();
  points(plan)["layers.*.mlp.down_proj.out"] = {"reduce_scatter(sum, tokens, tp)",
                                                "all_gather(tokens, tp)"};
  const LintReport report = linted(plan.dump());
  EXPECT_TRUE(report.meshes[0].findings.empty()) << lint_text(report);
}

// A rule that the code names is in the table, and the other way round.
TEST(Lint, RulesAreThoseOfTheTable) {
  const std::filesystem::path root = SHARDCHECK_SOURCE_DIR;
  std::vector<std::filesystem::path> files{
      root / "sharded/program.cpp",          root / "sharded/program_findings.cpp",
      root / "sharded/placement_rules.cpp",  root / "sharded/partition_rules.cpp",
      root / "sharded/step_rules.cpp",       root / "harness/lint.cpp",
      root / "harness/lint_waste.cpp",       root / "harness/quantisation_groups.cpp"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "sharded/ops"))
    if (entry.path().extension() == ".cpp") files.push_back(entry.path());
  std::set<std::string> no_rules{"head_dim", "num_heads", "num_kv_heads"};
  for (const std::string& op : builtin_ops().names()) no_rules.insert(op);
  const std::regex word("\"([a-z]+(_[a-z]+)+)\"");
  std::set<std::string> used, known;
  for (const auto& file : files) {
    const std::string text = read_text(file);
    for (std::sregex_iterator at(text.begin(), text.end(), word), end; at != end; ++at)
      if (!no_rules.contains((*at)[1])) used.insert((*at)[1]);
  }
  for (const PlacementRule& rule : kPlacementRules) known.emplace(rule.name);
  EXPECT_EQ(used, known);
}

}  // namespace
}  // namespace shardcheck::testing
