// SPDX-License-Identifier: Apache-2.0
// A plan meets a model and a mesh: which module a pattern names, and which ranges each rank gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/model/input_error.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// One weight entry of a llama plan over tp, resolved for `shape`.
ResolvedPlan resolve_entry(const std::string& entry, int ranks, const SmallModel& shape = {}) {
  return resolve(tp_plan(entry, ""), shapes(shape), line(ranks));
}
/// The rows of every rank, in heads.
std::vector<Ranges> heads_of(const ResolvedPlan& plan, const std::string& module,
                             std::int64_t head_dim = 8) {
  std::vector<Ranges> heads = plan.placement(module).rows;
  for (Ranges& ranges : heads) {
    for (Range& range : ranges) {
      EXPECT_EQ(range.begin % head_dim, 0);
      EXPECT_EQ(range.end % head_dim, 0);
      range = {range.begin / head_dim, range.end / head_dim};
    }
  }
  return heads;
}

TEST(Matches, UnderstandsStarsAndAlternatives) {
  EXPECT_TRUE(matches("layers.*.mlp.up_proj", "layers.17.mlp.up_proj"));
  EXPECT_TRUE(matches("layers.1*.mlp.up_proj", "layers.17.mlp.up_proj"));
  EXPECT_TRUE(matches("layers.*.self_attn.{q,k,v}_proj", "layers.0.self_attn.k_proj"));
  EXPECT_TRUE(matches("layers.{0,2}.{mlp,self_attn}.{q,up}_proj", "layers.2.mlp.up_proj"));
  EXPECT_TRUE(matches("{norm,lm_head}", "norm"));
  EXPECT_TRUE(matches("layers.*.*_layernorm", "layers.3.post_attention_layernorm"));
  EXPECT_TRUE(matches("n{,o}rm", "nrm"));
  EXPECT_TRUE(matches("layers.{1*,2}.mlp", "layers.17.mlp"));
  // Two ways each, sixty in a row: tried one by one they would outlast the universe.
  std::string many;
  for (int i = 0; i < 60; ++i) many += "{a,aa}";
  EXPECT_TRUE(matches(many, std::string(90, 'a')));
  EXPECT_FALSE(matches(many, std::string(90, 'a') + "b"));
  EXPECT_FALSE(matches(many, std::string(121, 'a')));
  // A star stands for no dot and for nothing of another depth.
  EXPECT_FALSE(matches("layers.*", "layers.3.mlp"));
  EXPECT_FALSE(matches("*.up_proj", "layers.3.mlp.up_proj"));
  EXPECT_FALSE(matches("layers.*.mlp.up_proj", "layers.17.mlp.up_proj.out"));
  EXPECT_FALSE(matches("layers.*.self_attn.{q,k}_proj", "layers.0.self_attn.v_proj"));
  EXPECT_FALSE(matches("layers.{0,2}.mlp", "layers.1.mlp"));
  EXPECT_FALSE(matches("", "norm"));
  EXPECT_FALSE(matches("{norm", "norm"));
}

TEST(Matches, IgnoresTheBaseModelPrefixOnBothSides) {
  EXPECT_TRUE(matches("model.layers.*.mlp.up_proj", "layers.3.mlp.up_proj"));
  EXPECT_TRUE(matches("transformer.h.*.mlp.c_fc", "h.3.mlp.c_fc"));
  EXPECT_TRUE(matches("norm", "model.norm"));
}

TEST(Resolve, TakesPrefixedPatternsForModulesAndPoints) {
  const Plan plan = tp_plan(
      R"json("model.layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"})json",
      R"json("model.layers.0.mlp.gate_proj.out": "all_gather(features, tp)")json");
  const ResolvedPlan resolved = resolve(plan, shapes({}), line(2));
  EXPECT_EQ(resolved.placement("layers.1.mlp.up_proj").rows.at(1), (Ranges{{27, 53}}));
  EXPECT_EQ(resolved.steps(Phase::decode, "layers.0.mlp.gate_proj.out").size(), 1u);
  EXPECT_TRUE(resolved.steps(Phase::decode, "layers.1.mlp.gate_proj.out").empty());
}

TEST(Resolve, LeavesWhatIsNotNamedWhole) {
  const ResolvedPlan plan = resolve_entry(R"json("lm_head": {"tp": "shard(vocab)"})json", 2);
  const Model model = shapes({});
  EXPECT_EQ(plan.weights.size(), model.modules().size());
  for (const Module& module : model.modules()) {
    const bool cut = module.path == "lm_head";
    EXPECT_EQ(plan.placement(module.path).cuts.size(), cut ? 1u : 0u);
    EXPECT_EQ(total(plan.rows_of(module, 1)), cut ? 128 : module.out);
    EXPECT_EQ(total(plan.cols_of(module, 1)), module.in);
  }
}

TEST(Resolve, CutsRowsColumnsAndVocabularies) {
  const ResolvedPlan plan = resolve_entry(R"json(
      "layers.*.mlp.up_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"},
      "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab by chunk)"},
      "norm": {"tp": "replicate"})json",
                                          3);
  EXPECT_THAT(plan.placement("layers.0.mlp.up_proj").rows,
              ElementsAre(Ranges{{0, 18}}, Ranges{{18, 36}}, Ranges{{36, 53}}));
  EXPECT_TRUE(plan.placement("layers.0.mlp.up_proj").cols.empty());
  EXPECT_THAT(plan.placement("layers.0.mlp.down_proj").cols,
              ElementsAre(Ranges{{0, 18}}, Ranges{{18, 36}}, Ranges{{36, 53}}));
  EXPECT_THAT(plan.placement("embed_tokens").rows,
              ElementsAre(Ranges{{0, 86}}, Ranges{{86, 172}}, Ranges{{172, 257}}));
  EXPECT_EQ(plan.placement("lm_head").rows, plan.placement("embed_tokens").rows);  // chunks of 86 too
  EXPECT_TRUE(plan.placement("layers.0.mlp.up_proj").on(0)->rows);
  EXPECT_FALSE(plan.placement("layers.0.mlp.down_proj").on(0)->rows);
  EXPECT_EQ(plan.placement("norm").on(0), nullptr);
}

TEST(Resolve, GivesRanksTheKvHeadsOfTheirQHeads) {
  const Model model = shapes({});
  const ResolvedPlan four = resolve(megatron(), model, line(4));
  EXPECT_THAT(heads_of(four, "layers.0.self_attn.q_proj"),
              ElementsAre(Ranges{{0, 3}}, Ranges{{3, 5}}, Ranges{{5, 7}}, Ranges{{7, 9}}));
  EXPECT_THAT(heads_of(four, "layers.1.self_attn.k_proj"),
              ElementsAre(Ranges{{0, 1}}, Ranges{{1, 2}}, Ranges{{1, 3}}, Ranges{{2, 3}}));
  EXPECT_TRUE(four.placement("layers.1.self_attn.k_proj").may_overlap);
  EXPECT_FALSE(four.placement("layers.1.self_attn.q_proj").may_overlap);
  EXPECT_EQ(four.placement("layers.1.self_attn.o_proj").cols,
            four.placement("layers.1.self_attn.q_proj").rows);
  const ResolvedPlan nine = resolve(megatron(), model, line(9));
  for (int rank = 0; rank < 9; ++rank) {
    EXPECT_EQ(heads_of(nine, "layers.0.self_attn.q_proj")[static_cast<std::size_t>(rank)],
              (Ranges{{rank, rank + 1}}));
    EXPECT_EQ(heads_of(nine, "layers.0.self_attn.v_proj")[static_cast<std::size_t>(rank)],
              (Ranges{{rank / 3, rank / 3 + 1}}));
  }
}

TEST(Resolve, LetsKvHeadsFollowExplicitRangesOfQ) {
  const ResolvedPlan plan = resolve_entry(
      R"json("layers.*.self_attn.q_proj": {"tp": {"shard": "out", "by": "head",
                 "ranges": {"3": [[[8,9],[0,2]], [], [[2,8]]]}}},
             "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"})json",
      3);
  EXPECT_THAT(heads_of(plan, "layers.0.self_attn.q_proj"),
              ElementsAre(Ranges{{8, 9}, {0, 2}}, Ranges{}, Ranges{{2, 8}}));
  EXPECT_THAT(heads_of(plan, "layers.0.self_attn.k_proj"),
              ElementsAre(Ranges{{0, 1}, {2, 3}}, Ranges{}, Ranges{{0, 3}}));
}

// Otherwise an uncut value would differ from its like in another operand by nothing but the list of its ranges.
TEST(Resolve, TakesRangesThatGiveOneRankEverythingForNoCut) {
  const auto gate = [](const std::string& ranges) {
    return resolve_entry("\"layers.*.mlp.gate_proj\": {\"tp\": {\"shard\": \"out\", \"ranges\": {\"1\": [" + ranges + "]}}}", 1)
        .placement("layers.0.mlp.gate_proj").rows;
  };
  EXPECT_THAT(gate("[[0,53]]"), ElementsAre());
  EXPECT_THAT(gate("[[50,53],[0,9],[9,50]]"), ElementsAre());
  // What is missing, listed twice or beyond the weight is kept, for check_partitions to report.
  EXPECT_THAT(gate("[[0,50]]"), ElementsAre(Ranges{{0, 50}}));
  EXPECT_THAT(gate("[[0,53],[1,2]]"), ElementsAre(Ranges{{0, 53}, {1, 2}}));
  EXPECT_THAT(gate("[[0,54]]"), ElementsAre(Ranges{{0, 53}, {53, 54}}));
  // On a second axis of one rank what the first left stays as it is.
  const Plan two = parse_plan(R"json({"name": "two", "mesh": ["x", "y"], "weights": {"layers.*.mlp.gate_proj": {
      "x": "shard(out)", "y": {"shard": "out", "ranges": {"1": [[[0,27]]]}}}}})json", "two.json");
  const Model even = shapes({.ffn = 54});
  EXPECT_THAT(resolve(two, even, Mesh{{{"x", 2}, {"y", 1}}}).placement("layers.0.mlp.gate_proj").rows,
              ElementsAre(Ranges{{0, 27}}, Ranges{{27, 54}}));
}

// hidden is no multiple of head_dim, or one by chance: what lies behind the last whole head would be on no rank.
TEST(Resolve, CutsBetweenHeadsOnlyWhereThereAreHeads) {
  const auto resolved = [](const std::string& point, const std::string& step) {
    return resolve(tp_plan("", "\"" + point + "\": \"" + step + "\""), shapes({.hidden = 72}), line(3));
  };
  for (const char* point : {"embed_tokens.out", "layers.*.mlp.down_proj.in", "layers.*.self_attn.o_proj.out", "lm_head.in",
                            "layers.*.self_attn.q_proj.in", "norm.out"}) {
    for (const char* step : {"slice(head, tp)", "slice(kv_head, tp)", "reduce_scatter(sum, head, tp)", "all_to_all(head, tokens, tp)"}) {
      EXPECT_THAT(input_error([&] { resolved(point, step); }), HasSubstr("this value has none; write features")) << point << " " << step;
    }
    resolved(point, "all_gather(head, tp)");  // joins what there is
  }
  for (const char* point : {"layers.*.self_attn.{q,k,v}_proj.out", "layers.*.self_attn.o_proj.in"})
    resolved(point, "slice(head, tp)");
}

TEST(Resolve, CutsEverySectionOfAFusedTensor) {
  const SmallModel gpt2{"gpt2", 5, 5, 8, 40, 53, 83, 1};
  const ResolvedPlan plan = resolve(megatron(), shapes(gpt2), line(3));
  EXPECT_THAT(heads_of(plan, "h.0.attn.c_attn"),
              ElementsAre(Ranges{{0, 2}, {5, 7}, {10, 12}}, Ranges{{2, 4}, {7, 9}, {12, 14}},
                          Ranges{{4, 5}, {9, 10}, {14, 15}}));
  const auto c_attn = [&](const std::string& cut, int ranks) {
    return heads_of(resolve_entry("\"h.*.attn.c_attn\": {\"tp\": " + cut + "}", ranks, gpt2),
                    "h.0.attn.c_attn");
  };
  EXPECT_THAT(
      c_attn(R"json({"shard": "out", "by": "head", "ranges": {"2": [[[1,4]],[[0,1],[4,5]]]}})json", 2),
      ElementsAre(Ranges{{1, 4}, {6, 9}, {11, 14}},
                  Ranges{{0, 1}, {4, 5}, {5, 6}, {9, 10}, {10, 11}, {14, 15}}));
  EXPECT_THAT(c_attn("\"shard(out)\"", 5).at(1), (Ranges{{1, 2}, {6, 7}, {11, 12}}));
  // What torch.chunk does to the whole tensor is another thing.
  EXPECT_THAT(c_attn("\"shard(out by chunk)\"", 3),
              ElementsAre(Ranges{{0, 5}}, Ranges{{5, 10}}, Ranges{{10, 15}}));
}

TEST(Resolve, NestsTheCutsOfTwoAxes) {
  const Plan plan = parse_plan(R"json({"name": "two", "mesh": ["x", "y"], "weights": {
      "layers.*.self_attn.q_proj": {"x": "shard(out by head)", "y": "shard(out by head)"},
      "layers.*.self_attn.{k,v}_proj": {"x": "shard(out by kv_head)", "y": "shard(out by kv_head)"},
      "layers.*.mlp.up_proj": {"y": "shard(out)", "x": "shard(in)"},
      "lm_head": {"y": "shard(vocab)"}}})json",
                               "two.json");
  const ResolvedPlan resolved = resolve(plan, shapes({}), Mesh{{{"x", 2}, {"y", 3}}});
  // 9 heads: 5 + 4 by x, then 2 + 2 + 1 and 2 + 1 + 1 by y; whatever order the plan names the axes in.
  EXPECT_THAT(heads_of(resolved, "layers.0.self_attn.q_proj"),
              ElementsAre(Ranges{{0, 2}}, Ranges{{2, 4}}, Ranges{{4, 5}}, Ranges{{5, 7}},
                          Ranges{{7, 8}}, Ranges{{8, 9}}));
  EXPECT_THAT(heads_of(resolved, "layers.0.self_attn.k_proj"),
              ElementsAre(Ranges{{0, 1}}, Ranges{{0, 2}}, Ranges{{1, 2}}, Ranges{{1, 3}},
                          Ranges{{2, 3}}, Ranges{{2, 3}}));
  const ModulePlacement& up = resolved.placement("layers.0.mlp.up_proj");
  EXPECT_EQ(up.cols.at(4), (Ranges{{20, 40}}));
  EXPECT_EQ(up.rows.at(4), (Ranges{{18, 36}}));
  EXPECT_EQ(resolved.placement("lm_head").rows.at(1), resolved.placement("lm_head").rows.at(4));
}

TEST(Resolve, LetsKvHeadsFollowQOnTheAxisThatCutsThem) {
  const Plan plan = parse_plan(R"json({"name": "two", "mesh": ["x", "y"], "weights": {
      "layers.*.self_attn.q_proj": {"x": "shard(out by head)", "y": "shard(out by head)"},
      "layers.*.self_attn.k_proj": {"x": "shard(out by kv_head)"}}})json",
                               "two.json");
  const ResolvedPlan resolved = resolve(plan, shapes({}), Mesh{{{"x", 2}, {"y", 3}}});
  for (int rank = 0; rank < 6; ++rank) {  // ranks of one x share k: heads 0 to 4, heads 5 to 8
    EXPECT_EQ(heads_of(resolved, "layers.0.self_attn.k_proj").at(static_cast<std::size_t>(rank)),
              rank < 3 ? (Ranges{{0, 2}}) : (Ranges{{1, 3}}));
  }
}

TEST(Resolve, ChoosesTheSectionOfTheFamily) {
  const Plan plan = parse_plan(R"json({"name": "f", "mesh": ["tp"], "families": {
      "llama": {"weights": {"lm_head": {"tp": "shard(vocab)"}}},
      "qwen2": {"weights": {"embed_tokens": {"tp": "shard(vocab)"}}}}})json",
                               "f.json");
  const auto cut = [&](const char* type, const char* module) {
    return !resolve(plan, shapes({type, 4, 2, 4, 20, 27, 50, 1}), line(2)).placement(module).cuts.empty();
  };
  EXPECT_TRUE(cut("llama", "lm_head"));
  EXPECT_TRUE(cut("mistral", "lm_head"));  // falls back to llama
  EXPECT_FALSE(cut("qwen2", "lm_head"));   // has its own
  EXPECT_TRUE(cut("qwen2", "embed_tokens"));
  const std::string message = input_error([&] {
    resolve(plan, shapes({"gpt2", 5, 5, 8, 40, 53, 83, 1}), line(2));
  });
  EXPECT_THAT(message, HasSubstr("no section for model_type gpt2"));
  EXPECT_THAT(message, HasSubstr("llama, qwen2"));
}

TEST(Resolve, LetsAPhaseOverrideSinglePoints) {
  const Plan plan = tp_plan(
      "", R"json("embed_tokens.out": "slice(tokens, tp)", "norm.in": "all_gather(tokens, tp)")json",
      R"json(, "phase": {"decode": {"norm.in": [], "lm_head.out": "all_gather(vocab, tp)"}})json");
  const ResolvedPlan resolved = resolve(plan, shapes({}), line(2));
  EXPECT_EQ(resolved.steps(Phase::prefill, "norm.in").size(), 1u);
  EXPECT_TRUE(resolved.steps(Phase::decode, "norm.in").empty());
  EXPECT_TRUE(resolved.steps(Phase::prefill, "lm_head.out").empty());
  EXPECT_EQ(resolved.steps(Phase::decode, "lm_head.out").size(), 1u);
  EXPECT_EQ(resolved.steps(Phase::decode, "embed_tokens.out").size(), 1u);
}

TEST(Resolve, AcceptsAnyNumberOfRanksWhereNoHeadIsCut) {
  const ResolvedPlan plan = resolve_entry(kMlpCuts, 60);
  const ModulePlacement& up = plan.placement("layers.0.mlp.up_proj");
  EXPECT_EQ(total(up.rows.at(52)), 1);
  EXPECT_EQ(total(up.rows.at(53)), 0);  // 53 rows on 60 ranks
}

TEST(Resolve, AcceptsOverlapsOfKvHeadsInExplicitRanges) {
  const ResolvedPlan plan = resolve_entry(
      R"json("layers.*.self_attn.k_proj": {"tp": {"shard": "out", "by": "kv_head", "ranges": {"2": [[[0,2]],[[1,3]]]}}})json",
      2);
  EXPECT_THAT(heads_of(plan, "layers.0.self_attn.k_proj"), ElementsAre(Ranges{{0, 2}}, Ranges{{1, 3}}));
  EXPECT_TRUE(plan.placement("layers.0.self_attn.k_proj").may_overlap);
}

/// A checkpoint whose down_proj is stored in groups of 32 columns.
class Quantised final : public WeightSource {
 public:
  explicit Quantised(const std::vector<Module>& modules) : whole_(synthetic_source(1, modules)) {}
  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return whole_->shape(tensor);
  }
  DType dtype(std::string_view tensor) const override {
    return tensor.find("down_proj") == std::string_view::npos ? DType::f32 : DType::q4_1;
  }
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

TEST(Resolve, CutsQuantisedWeightsBetweenGroups) {
  Config config = parse_config(config_text({"llama", 4, 2, 8, 24, 160, 50, 1}), "small.json");
  auto source = std::make_unique<Quantised>(modules(config));
  const Model model(std::move(config), std::move(source));
  const auto resolve_cut = [&](const std::string& module, const std::string& cut, int ranks) {
    return resolve(tp_plan("\"" + module + "\": {\"tp\": \"" + cut + "\"}", ""), model, line(ranks));
  };
  // 160 columns are 5 groups of 32.
  EXPECT_THAT(resolve_cut("layers.0.mlp.down_proj", "shard(in by group)", 2)
                  .placement("layers.0.mlp.down_proj")
                  .cols,
              ElementsAre(Ranges{{0, 96}}, Ranges{{96, 160}}));
  EXPECT_EQ(total(resolve_cut("layers.0.mlp.down_proj", "shard(in by group)", 6)
                      .placement("layers.0.mlp.down_proj")
                      .cols.at(5)),
            0);
  EXPECT_THAT(
      resolve_cut("layers.0.mlp.down_proj", "shard(in)", 3).placement("layers.0.mlp.down_proj").cols.at(0),
      ElementsAre(Range{0, 54}));  // legal: weights are dequantised when they are read
  EXPECT_THAT(input_error([&] { resolve_cut("layers.0.mlp.down_proj", "shard(out by group)", 2); }),
              HasSubstr("`by group` cuts columns (in)"));
  EXPECT_THAT(input_error([&] { resolve_cut("layers.0.mlp.up_proj", "shard(in by group)", 2); }),
              HasSubstr("needs a quantised checkpoint"));
}

}  // namespace
}  // namespace shardcheck
