// SPDX-License-Identifier: Apache-2.0
// Norms whose features are cut: `<norm>.stat` in plans, what the builder makes of it, and that the ranks compute the
// model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/input_error.hpp"
#include "tests/sharded/feature_stream.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two axes: the stream cut by y alone, every weight by both, no gather before the logits.
constexpr const char* kFeatureStreamOfTwoAxes = R"json({ "name": "2d stream", "mesh": ["x", "y"],
  "weights": {
    "embed_tokens": {"x": "shard(vocab)", "y": "shard(features)"},
    "lm_head": {"x": "shard(vocab)", "y": "shard(in)"},
    "layers.*.{input_layernorm,post_attention_layernorm}": {"y": "shard(features)"},
    "norm": {"y": "shard(features)"},
    "layers.*.self_attn.q_proj": {"x": "shard(out by head)", "y": "shard(in)"},
    "layers.*.self_attn.{k,v}_proj": {"x": "shard(out by kv_head)", "y": "shard(in)"},
    "layers.*.self_attn.o_proj": {"x": "shard(in by head)", "y": "shard(out)"},
    "layers.*.mlp.{gate,up}_proj": {"x": "shard(out)", "y": "shard(in)"},
    "layers.*.mlp.down_proj": {"x": "shard(in)", "y": "shard(out)"} },
  "collectives": {
    "embed_tokens.out": "all_reduce(sum, x)",
    "layers.*.{input_layernorm,post_attention_layernorm}.stat": "all_reduce(sum, y)",
    "norm.stat": "all_reduce(sum, y)",
    "layers.*.self_attn.{q,k,v}_proj.out": "all_reduce(sum, y)",
    "layers.*.self_attn.o_proj.out": "all_reduce(sum, x)",
    "layers.*.mlp.{gate,up}_proj.out": "all_reduce(sum, y)",
    "layers.*.mlp.down_proj.out": "all_reduce(sum, x)",
    "lm_head.out": ["all_reduce(sum, y)", "all_gather(vocab, x)"] } })json";

// The last norm alone, cut by both axes: two sums one after the other, of ranges in an order of their own.
constexpr const char* kTwoSteps = R"json({ "name": "two steps", "mesh": ["x", "y"],
  "weights": {
    "norm": {"x": {"shard": "features", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(features)"},
    "layers.1.mlp.down_proj":
      {"x": {"shard": "out", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(out)"},
    "layers.1.self_attn.o_proj":
      {"x": {"shard": "out", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(out)"},
    "layers.0.mlp.down_proj":
      {"x": {"shard": "out", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(out)"},
    "layers.0.self_attn.o_proj":
      {"x": {"shard": "out", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(out)"},
    "embed_tokens":
      {"x": {"shard": "features", "ranges": {"2": [[[30,40],[0,12]],[[12,30]]]}}, "y": "shard(features)"} },
  "collectives": {
    "layers.*.{input_layernorm,post_attention_layernorm}.in": "all_gather(features, [x, y])",
    "norm.stat": ["all_reduce(sum, y)", "all_reduce(sum, x)"],
    "norm.out": "all_gather(features, [x, y])" } })json";

struct Scheme {
  const char* name;
  const char* plan;   // or the name of a shipped one
  const char* model;  // a shipped model; null: the small llama
  std::vector<Mesh> meshes;
};
void PrintTo(const Scheme& given, std::ostream* out) { *out << given.name; }

class NormsOfParts : public ::testing::TestWithParam<Scheme> {
 protected:
  static Plan plan() {
    const std::string text = GetParam().plan;
    return text.find('{') == std::string::npos ? load_plan(text) : parse_plan(text, "scheme.json");
  }
  static Model model() {
    return GetParam().model != nullptr ? load_model(GetParam().model) : make_model({});
  }
  static std::vector<Step> steps(std::int64_t vocab) {
    std::vector<Step> all{prefill({5, 1, 7}, vocab)};
    Step decode{Phase::decode, 0, {{0, 5, 1}, {2, 7, 1}}, varied_ids(2, vocab, 3)};
    all.push_back(std::move(decode));
    return all;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Schemes, NormsOfParts,
    ::testing::Values(
        Scheme{"feature_stream", kFeatureStream, nullptr, {line(2), line(4), line(7)}},
        Scheme{"of_two_axes",
               kFeatureStreamOfTwoAxes,
               nullptr,
               {Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 4}, {"y", 2}}}, Mesh{{{"x", 1}, {"y", 4}}},
                Mesh{{{"x", 3}, {"y", 1}}}}},
        Scheme{"two_steps", kTwoSteps, nullptr, {Mesh{{{"x", 2}, {"y", 3}}}}},
        Scheme{"megatron_on_olmo2", "megatron", "tiny-olmo2", {line(2), line(3), line(4), line(9)}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(NormsOfParts, ComputeTheModel) {
  const Registry ops = builtin_ops();
  const Model model = this->model();
  const std::vector<Step> steps = this->steps(model.config().vocab_size);
  const Ran one = run(model, load_plan("replicated"), line(1), steps, ops);
  for (const Mesh& mesh : GetParam().meshes) {
    const Ran many = run(model, plan(), mesh, steps, ops);
    for (const Finding& finding : many.program.findings)
      ADD_FAILURE() << finding.rule << " at " << finding.tap;
    expect_same_values(one, many, summation_limit(model.config()));
  }
}

TEST_P(NormsOfParts, SendOneNumberPerTokenWhateverTheWireDtype) {
  const Registry ops = builtin_ops();
  const Model model = this->model();
  const std::vector<Step> steps = this->steps(model.config().vocab_size);
  for (const Mesh& mesh : GetParam().meshes) {
    for (const DType storage : {DType::bf16, DType::f64}) {
      RunSetup setup;
      setup.settings = {storage, DType::f16, {}};
      const Ran ran = run(model, plan(), mesh, steps, ops, setup);
      std::int64_t statistics = 0;
      for (const LedgerRecord& record : ran.result.ledgers[0]) {
        if (record.kind != LedgerRecord::Kind::collective ||
            record.site.find(".stat") == std::string::npos)
          continue;
        ++statistics;
        const std::int64_t tokens = record.phase == Phase::prefill ? 13 : 2;
        EXPECT_EQ(record.dtype, accumulate_dtype(storage)) << record.site;
        EXPECT_EQ(record.payload_bytes, tokens * (storage == DType::f64 ? 8 : 4)) << record.site;
      }
      EXPECT_EQ(statistics == 0, mesh.axes.back().size == 1) << to_string(mesh);
      setup.device = "meta";
      setup.world = "solo";
      const Model bare(model.config(), nullptr);
      EXPECT_EQ(run(bare, plan(), mesh, steps, ops, setup).result.ledgers, ran.result.ledgers);
    }
  }
}

/// "rms_apply layers.0.self_attn.k_norm" and the like, of one module, in order.
std::vector<std::string> listing(const Program& program, std::string_view module) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.instructions.at(Phase::prefill)) {
    if (instruction.module != module) continue;
    lines.push_back((instruction.op == nullptr ? to_string(instruction.collective)
                                               : std::string(instruction.op->name())) +
                    " " + instruction.site);
  }
  return lines;
}

const Value& value_of(const Program& program, std::string_view name) {
  for (const Value& value : program.values) {
    if (value.name == name) return value;
  }
  throw std::out_of_range(std::string(name));
}

TEST(NormOfParts, IsAStatisticThePlansStepsAndTheNorm) {
  const Registry ops = builtin_ops();
  const Model model = load_model("tiny-olmo2");
  const Program program = program_of(model, megatron(), line(4), ops);
  const std::string norm = "layers.1.self_attn.k_norm";
  EXPECT_THAT(listing(program, norm),
              ElementsAre("rms_statistic " + norm + ".stat.partial",
                          "all_reduce(sum, tp) " + norm + ".stat", "rms_apply " + norm));
  const Value &partial = value_of(program, norm + ".stat.partial"),
              &sum = value_of(program, norm + ".stat"), &result = value_of(program, norm);
  EXPECT_EQ(to_string(partial.layout, program.mesh), "P(sum)");
  EXPECT_EQ(to_string(sum.layout, program.mesh), "R");
  EXPECT_EQ(to_string(result.layout, program.mesh), "S(features)");
  EXPECT_EQ(partial.layout.features, 1);
  EXPECT_EQ(partial.dtype, ValueDType::accumulate);
  EXPECT_EQ(sum.dtype, ValueDType::accumulate);
  EXPECT_EQ(result.dtype, ValueDType::storage);
  EXPECT_TRUE(result.layout.may_overlap);
}

TEST(NormOfParts, InAGroupOfOneIsTheNorm) {
  const Registry ops = builtin_ops();
  const Program program = program_of(load_model("tiny-olmo2"), megatron(), line(1), ops);
  EXPECT_THAT(listing(program, "layers.1.self_attn.k_norm"),
              ElementsAre("rms_norm layers.1.self_attn.k_norm"));
}

TEST(NormOfParts, StagesOfSeveralStepsHaveNames) {
  const Registry ops = builtin_ops();
  const Program program = program_of(make_model({}), parse_plan(kTwoSteps, "scheme.json"),
                                     Mesh{{{"x", 2}, {"y", 3}}}, ops);
  EXPECT_THAT(listing(program, "norm"),
              ElementsAre("rms_statistic norm.stat.partial", "all_reduce(sum, y) norm.stat.reduced",
                          "all_reduce(sum, x) norm.stat", "rms_apply norm.partial",
                          "all_gather(features, [x, y]) norm"));
  EXPECT_EQ(value_of(program, "norm.stat.reduced").dtype, ValueDType::accumulate);
}

// ---- what is refused ----

struct Wrong {
  const char* name;
  const char* weights;
  const char* collectives;
  const char *rule, *op, *tap;
};
void PrintTo(const Wrong& given, std::ostream* out) { *out << given.name; }

class WrongNormOfParts : public ::testing::TestWithParam<Wrong> {};

constexpr const char* kStream =
    R"json("embed_tokens": {"tp": "shard(features)"}, "layers.*.self_attn.o_proj": {"tp": "shard(out)"},
           "layers.*.mlp.down_proj": {"tp": "shard(out)"})json";
constexpr const char* kGathered =
    R"json("layers.*.{input_layernorm,post_attention_layernorm}.in": "all_gather(features, tp)")json";

INSTANTIATE_TEST_SUITE_P(
    Plans, WrongNormOfParts,
    ::testing::Values(
        Wrong{"sum_of_a_whole_statistic", "", R"json("norm.stat": "all_reduce(sum, tp)")json",
              "collective_misplaced", "all_reduce(sum, tp)", "norm.stat.partial"},
        Wrong{"weight_is_whole", kStream, R"json("norm.stat": "all_reduce(sum, tp)")json",
              "ranges_differ", "rms_apply", "layers.1"},
        Wrong{"weight_in_other_ranges",
              R"json("norm": {"tp": {"shard": "features", "ranges": {"2": [[[0,10]],[[10,40]]]}}})json",
              R"json("norm.stat": "all_reduce(sum, tp)")json", "ranges_differ", "rms_apply",
              "layers.1"},
        Wrong{"weight_is_cut_and_the_input_whole", R"json("norm": {"tp": "shard(features)"})json",
              R"json("norm.stat": "all_reduce(sum, tp)")json", "statistic_over_shard", "rms_apply",
              "layers.1"},
        Wrong{"a_step_that_leaves_it_partial", R"json("norm": {"tp": "shard(features)"})json",
              R"json("norm.stat": "broadcast(0, tp)", "norm.out": "all_gather(features, tp)")json",
              "collective_misplaced", "broadcast(0, tp)", "norm.stat.partial"},
        Wrong{"no_statistic", R"json("norm": {"tp": "shard(features)"})json",
              R"json("norm.out": "all_gather(features, tp)")json", "statistic_over_shard",
              "rms_norm", "layers.1"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(WrongNormOfParts, IsFound) {
  const Registry ops = builtin_ops();
  const Wrong& given = GetParam();
  const bool streams = std::string(given.name) != "sum_of_a_whole_statistic" &&
                       std::string(given.name) != "weight_is_cut_and_the_input_whole";
  std::string weights = given.weights, collectives = given.collectives;
  if (streams && weights != kStream) weights = std::string(kStream) + ", " + weights;
  if (streams) collectives += std::string(", ") + kGathered;
  const Program program = program_of(make_model({}), tp_plan(weights, collectives), line(2), ops);
  const auto same = [&](const Finding& f) {
    return f.rule == given.rule && f.op == given.op && f.tap == given.tap;
  };
  EXPECT_TRUE(std::any_of(program.findings.begin(), program.findings.end(), same));
  for (const Finding& f : program.findings)
    RecordProperty("finding", f.rule + " " + f.op + " " + f.tap + " " + f.fix);
}

TEST(NormOfParts, OfLayerNormIsRefused) {
  const Registry ops = builtin_ops();
  SmallModel gpt2;
  gpt2.model_type = "gpt2";
  gpt2.heads = gpt2.kv_heads = 5;
  const std::string message = input_error([&] {
    program_of(shapes(gpt2), tp_plan("", R"json("ln_f.stat": "all_reduce(sum, tp)")json"), line(2),
               ops);
  });
  EXPECT_THAT(message, HasSubstr("ln_f.stat"));
  EXPECT_THAT(message, HasSubstr("LayerNorm needs the mean"));
  EXPECT_THAT(message, HasSubstr("ln_f.in"));
}

TEST(NormOfParts, OfEachHeadIsRefused) {
  const Registry ops = builtin_ops();
  const std::string message = input_error([&] {
    program_of(load_model("tiny-qwen3"),
               tp_plan("", R"json("layers.*.self_attn.q_norm.stat": "all_reduce(sum, tp)")json"),
               line(2), ops);
  });
  EXPECT_THAT(message, HasSubstr("layers.0.self_attn.q_norm.stat"));
  EXPECT_THAT(message, HasSubstr("remove the steps"));
}

TEST(NormOfParts, WeightsAreCutByTheUnitsThatTheyHave) {
  const auto refusal = [](const char* model, const std::string& cut) {
    return input_error([&] { resolve(tp_plan(cut, ""), load_model(model), line(2)); });
  };
  const char* const q_by_head = R"json("layers.*.self_attn.q_norm": {"tp": "shard(features by head)"})json";
  EXPECT_NO_THROW(resolve(tp_plan(q_by_head, ""), load_model("tiny-olmo2"), line(2)));
  EXPECT_THAT(refusal("tiny-olmo2",
                      R"json("layers.*.self_attn.k_norm": {"tp": "shard(features by head)"})json"),
              HasSubstr("cut it by kv_head"));
  EXPECT_THAT(refusal("tiny-olmo2",
                      R"json("layers.*.self_attn.q_norm": {"tp": "shard(features by kv_head)"})json"),
              HasSubstr("`by kv_head` fits"));
  EXPECT_THAT(refusal("tiny-olmo2", R"json("norm": {"tp": "shard(features by head)"})json"),
              HasSubstr("`by head` fits"));
}

TEST(NormOfParts, AVectorForEveryHeadStaysWhole) {
  const Registry ops = builtin_ops();
  for (const char* cut :
       {R"json("layers.*.self_attn.q_norm": {"tp": "shard(features by head)"})json",
        R"json("layers.*.self_attn.k_norm": {"tp": "shard(features by kv_head)"})json",
        R"json("layers.*.self_attn.k_norm": {"tp": "shard(features)"})json"}) {
    const Program program = program_of(load_model("tiny-qwen3"), tp_plan(cut, ""), line(2), ops);
    const auto about_it = [](const Finding& f) { return f.rule == "head_parameter_is_cut"; };
    EXPECT_TRUE(std::any_of(program.findings.begin(), program.findings.end(), about_it)) << cut;
  }
}

TEST(NormOfParts, KNormFollowsTheHeadsOfQ) {
  const Model model = load_model("tiny-olmo2");
  const ResolvedPlan plan = resolve(megatron(), model, line(4));
  const std::string attention = "layers.2.self_attn.";
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(plan.rows_of(model.module(attention + "k_norm"), rank),
              plan.rows_of(model.module(attention + "k_proj"), rank));
    EXPECT_EQ(plan.rows_of(model.module(attention + "q_norm"), rank),
              plan.rows_of(model.module(attention + "q_proj"), rank));
  }
}

}  // namespace
}  // namespace shardcheck
