// SPDX-License-Identifier: Apache-2.0
// Ranges that are no partition: which weight, which rows, which ranks, and that a forced run stays inside the weight.
#include "sharded/partition_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sharded/op.hpp"
#include "sharded/program.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A plan's entry for q, by explicit ranges.
std::string q_ranges(const std::string& by, const std::string& list) {
  return R"json("layers.*.self_attn.q_proj": {"tp": {"shard": "out", "by": ")json" + by +
         R"json(", "ranges": )json" + list + "}}";
}

std::vector<Finding> findings_of(const std::string& weights, int ranks) {
  const Model model = shapes({"llama", 9, 3, 8, 40, 53, 257, 1});
  return check_partitions(model.config(), model.modules(),
                          resolve(tp_plan(weights, ""), model, line(ranks)))
      .findings;
}

struct Broken {
  const char* name;
  std::string weights;
  std::string rule, tap, met, required;
};
void PrintTo(const Broken& given, std::ostream* out) { *out << given.name; }
class EveryPartition : public ::testing::TestWithParam<Broken> {};

std::vector<Broken> broken() {
  const std::string q = "layers.0.self_attn.q_proj", each = "each of its 72 rows on one rank";
  return {
      {"gap", q_ranges("head", R"json({"2": [[[0,4]],[[5,9]]]})json"), "ranges_missing", q,
       "rows [32,40) on no rank", each},
      {"end_missing", q_ranges("head", R"json({"2": [[[0,4]],[[4,8]]]})json"), "ranges_missing", q,
       "rows [64,72) on no rank", each},
      {"start_missing", q_ranges("row", R"json({"2": [[[1,4]],[[4,72]]]})json"), "ranges_missing",
       q, "rows [0,1) on no rank", each},
      {"nobody_has_any", q_ranges("row", R"json({"2": [[],[]]})json"), "ranges_missing", q,
       "rows [0,72) on no rank", each},
      {"overlap", q_ranges("head", R"json({"2": [[[0,5]],[[4,9]]]})json"), "ranges_overlap", q,
       "rows [32,40) on ranks 0 and 1", each},
      {"overlap_inside", q_ranges("head", R"json({"2": [[[0,9]],[[4,5]]]})json"), "ranges_overlap",
       q, "rows [32,40) on ranks 0 and 1", each},
      {"twice_on_one_rank", q_ranges("head", R"json({"2": [[[0,5],[3,4]],[[5,9]]]})json"),
       "ranges_overlap", q, "rows [24,32) twice on rank 0", each},
      {"outside", q_ranges("head", R"json({"2": [[[0,5]],[[5,10]]]})json"), "ranges_outside", q,
       "rows from 72 on rank 1", "ranges within [0,72)"},
      {"far_outside", q_ranges("head", R"json({"2": [[[0,5]],[[5,4611686018427387904]]]})json"),
       "ranges_outside", q, "rows from 72 on rank 1", "ranges within [0,72)"},
      {"wholly_outside", q_ranges("row", R"json({"2": [[[0,72]],[[80,90]]]})json"),
       "ranges_outside", q, "rows from 72 on rank 1", "ranges within [0,72)"},
      {"kv_gap",
       R"json("layers.*.self_attn.k_proj": {"tp": {"shard": "out", "by": "kv_head", "ranges": {"2": [[[0,1]],[[0,2]]]}}})json",
       "ranges_missing", "layers.0.self_attn.k_proj", "rows [16,24) on no rank",
       "each of its 24 rows on one rank"},
      {"columns",
       R"json("layers.*.mlp.down_proj": {"tp": {"shard": "in", "ranges": {"2": [[[0,30]],[[29,53]]]}}})json",
       "ranges_overlap", "layers.0.mlp.down_proj", "columns [29,30) on ranks 0 and 1",
       "each of its 53 columns on one rank"},
  };
}

INSTANTIATE_TEST_SUITE_P(Ranges, EveryPartition, ::testing::ValuesIn(broken()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryPartition, IsOneFinding) {
  const Broken& given = GetParam();
  const std::vector<Finding> findings = findings_of(given.weights, 2);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, given.rule);
  EXPECT_EQ(findings[0].op, "weight");
  EXPECT_EQ(findings[0].tap, given.tap);
  EXPECT_EQ(findings[0].axis, "tp");
  EXPECT_EQ(findings[0].met, given.met);
  EXPECT_EQ(findings[0].required, given.required);
  EXPECT_THAT(findings[0].fix, HasSubstr(given.tap));
}

// What is sliced when such a plan is forced to run: nothing beyond the weight.
TEST_P(EveryPartition, IsCutOffAtTheWeightsEnd) {
  const Model model = shapes({"llama", 9, 3, 8, 40, 53, 257, 1});
  const Registry ops = builtin_ops();
  const Program program = build_program(
      model, resolve(tp_plan(GetParam().weights, ""), model, line(2)), ops);
  EXPECT_TRUE(program.forced_shapes);
  for (const Module& module : program.modules) {
    for (int rank = 0; rank < 2; ++rank) {
      for (const Range& range : program.plan.rows_of(module, rank)) {
        EXPECT_GE(range.begin, 0);
        EXPECT_LE(range.begin, range.end);
        EXPECT_LE(range.end, module.out);
      }
    }
  }
}

TEST(CheckPartitions, SharedKvHeadsUnevenCutsAndEmptyRanksAreLegal) {
  EXPECT_THAT(findings_of(std::string(kAttentionCuts) + ", " + kMlpCuts, 4), IsEmpty());
  EXPECT_THAT(findings_of(q_ranges("head", R"json({"3": [[[8,9],[0,1]],[],[[1,8]]]})json"), 3),
              IsEmpty());
  EXPECT_THAT(findings_of(R"json("layers.*.mlp.up_proj": {"tp": "shard(out by chunk)"})json", 8),
              IsEmpty());
}

TEST(CheckPartitions, AdjacentRangesAreOne) {
  const Model model = shapes({"llama", 9, 3, 8, 40, 53, 257, 1});
  const ResolvedPlan plan = resolve(
      tp_plan(q_ranges("row", R"json({"2": [[[0,3],[3,40]],[[40,72]]]})json"), ""), model, line(2));
  EXPECT_THAT(plan.placement("layers.0.self_attn.q_proj").rows[0], ElementsAre(Range{0, 40}));
}

// Cuts of two axes: each quarter once; ranks along an axis that doesn't cut hold the same.
TEST(CheckPartitions, LooksAtEveryAxisOfAMesh) {
  const Model model = shapes({"llama", 9, 3, 8, 40, 53, 257, 1});
  const Plan plan = parse_plan(
      R"json({"name": "t", "mesh": ["x", "y"], "weights": {"layers.*.mlp.up_proj": {"x": "shard(out)", "y": "shard(out)"},
              "layers.*.mlp.gate_proj": {"y": "shard(out)"}}})json",
      "t.json");
  const Mesh mesh{{{"x", 2}, {"y", 3}}};
  ResolvedPlan resolved = resolve(plan, model, mesh);
  const auto rules = [&] {
    std::vector<std::string> all;
    for (const Finding& f : check_partitions(model.config(), model.modules(), resolved).findings)
      all.push_back(f.rule + " " + f.tap + " " + f.axis + " " + f.met);
    return all;
  };
  EXPECT_THAT(rules(), IsEmpty());
  resolved.weights.at("layers.0.mlp.gate_proj").rows[4] = {{0, 18}};
  EXPECT_THAT(
      rules(),
      ElementsAre(
          "ranges_differ layers.0.mlp.gate_proj y rows [18,36) on rank 1 and [0,18) on rank 4"));
  resolved = resolve(plan, model, mesh);
  std::swap(resolved.weights.at("layers.0.mlp.up_proj").rows[0],
            resolved.weights.at("layers.0.mlp.up_proj").rows[5]);
  EXPECT_THAT(rules(), IsEmpty());  // another order is a partition all the same
  resolved.weights.at("layers.0.mlp.up_proj").rows[5] = resolved.weights.at("layers.0.mlp.up_proj").rows[4];
  EXPECT_THAT(
      rules(),
      ElementsAre(HasSubstr("ranges_missing layers.0.mlp.up_proj y rows [0,9) on no rank")));
}

TEST(CheckPartitions, NamesTheSectionAndTheRowThatAChunkCuts) {
  const Model model = shapes({"gpt2", 5, 5, 8, 40, 53, 83, 1});
  const auto check = [&](const std::string& cut, int ranks) {
    return check_partitions(
        model.config(), model.modules(),
        resolve(tp_plan("\"h.*.attn.c_attn\": {\"tp\": " + cut + "}", ""), model, line(ranks)));
  };
  for (const std::string cut :
       {"\"shard(out by head)\"", "\"shard(out)\"",
        R"json({"shard": "out", "ranges": {"2": [[[80,104],[0,24],[40,64]],[[24,40],[64,80],[104,120]]]}})json"})
    EXPECT_THAT(check(cut, 2).findings, IsEmpty()) << cut;
  const PartitionCheck chunks = check("\"shard(out by chunk)\"", 2);
  ASSERT_EQ(chunks.findings.size(), 1u);
  EXPECT_EQ(chunks.findings[0].rule, "section_is_cut");
  EXPECT_EQ(chunks.findings[0].met, "rows [0,60) on rank 0");
  EXPECT_EQ(chunks.findings[0].required,
            "sections q [0,40), k [40,80), v [80,120) cut each on its own");
  EXPECT_THAT(chunks.findings[0].sentence,
              HasSubstr("rank 0 has row 20 of q without its counterpart in k"));
  EXPECT_THAT(chunks.findings[0].sentence, HasSubstr("the section k (rows 40 to 79)"));
  EXPECT_EQ(chunks.findings[0].fix,
            "in weights \"h.0.attn.c_attn\": {\"tp\": \"shard(out by head)\"}");
  // What is assumed in its place is what the fix gives.
  EXPECT_EQ(chunks.assumed.at("h.0.attn.c_attn").rows,
            resolve(tp_plan(R"json("h.*.attn.c_attn": {"tp": "shard(out by head)"})json", ""),
                    model, line(2))
                .placement("h.0.attn.c_attn")
                .rows);
}

TEST(CheckPartitions, KnowsTheModelsSections) {
  const Model model = shapes({"gpt2", 5, 5, 8, 40, 53, 83, 2});
  const ResolvedPlan plan = resolve(
      tp_plan(R"json("h.*.attn.c_attn": {"tp": "shard(out by head)"})json", ""), model, line(2));
  std::vector<Module> modules = model.modules();
  for (Module& module : modules) {
    if (module.path != "h.1.attn.c_attn") continue;
    std::swap(module.sections[0].role, module.sections[1].role);
  }
  const std::vector<Finding> findings = check_partitions(model.config(), modules, plan).findings;
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rule, "sections_misdeclared");
  EXPECT_EQ(findings[0].tap, "h.1.attn.c_attn");
  EXPECT_EQ(findings[0].met, "k [0,40), q [40,80), v [80,120)");
  EXPECT_EQ(findings[0].required, "q [0,40), k [40,80), v [80,120)");
}

}  // namespace
}  // namespace shardcheck
