// SPDX-License-Identifier: Apache-2.0
// The whole of verify: which cells there are, which gates ran, what is refused before anything runs, what is reported.
#include "harness/verify.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/candidate.hpp"
#include "model/sources.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/harness/ran_program.hpp"
#include "tests/model/input_error.hpp"
#include "tests/model/temp_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

VerifyOptions options_for(const std::vector<int>& sizes, const std::vector<DType>& dtypes = kAll) {
  VerifyOptions options;
  for (const int tp : sizes) options.meshes.push_back(Mesh{{{"tp", tp}}});
  options.dtypes = dtypes;
  options.phases = {Phase::prefill, Phase::decode};
  options.inputs.tokens = 12;
  options.inputs.decode_steps = 3;
  options.repro = "shardcheck verify M --plan P";
  return options;
}

VerifyReport report_of(const std::string& model, const VerifyOptions& options,
                       const std::string& plan = "megatron") {
  return verify(
      load_model(model),
      plan.find('{') == std::string::npos ? load_plan(plan) : parse_plan(plan, "plan.json"),
      options, builtin_parts());
}

std::string failures(const VerifyReport& report) {
  std::string text;
  for (const CellReport& cell : report.cells) {
    if (cell.verdict != Verdict::passed)
      text += "\n" + to_string(cell.mesh) + " " + std::string(name(cell.dtype)) + " " + describe(cell);
  }
  return text;
}

// ---- what passes ----

TEST(Verify, EveryShippedModelPassesEverywhere) {
  for (const std::string model : {"tiny-llama", "tiny-llama-bias", "tiny-qwen2", "tiny-mistral",
                                  "tiny-gpt2", "tiny-odd-vocab", "tiny-qwen3", "tiny-olmo2",
                                  "tiny-phi3"}) {
    const std::int64_t heads = load_model(model).config().num_heads;
    std::vector<int> sizes;
    for (int tp = 1; tp <= heads; ++tp) sizes.push_back(tp);
    const VerifyReport report = report_of(model, options_for(sizes));
    EXPECT_EQ(report.cells.size(), sizes.size() * 4 * 2);
    EXPECT_TRUE(report.passed()) << model << failures(report);
    for (const CellReport& cell : report.cells) {
      if (cell.dtype == DType::f64) {
        EXPECT_LE(cell.logits.rel_max, kG2Limit);
      }
    }
  }
}

TEST(Verify, BatchesLengthsAndChunks) {
  VerifyOptions options = options_for({1, 3, 4}, {DType::f64, DType::bf16});
  options.inputs.lengths = {5, 1, 17};
  for (const std::int64_t chunk : {0, 1, 4}) {
    options.inputs.chunk = chunk;
    for (const std::string model : {"tiny-mistral", "tiny-odd-vocab", "tiny-gpt2", "tiny-qwen3", "tiny-olmo2",
                                    "tiny-phi3"}) {
      const VerifyReport report = report_of(model, options);
      EXPECT_TRUE(report.passed()) << model << " chunk " << chunk << failures(report);
    }
  }
}

TEST(Verify, OneTokenOnFourRanks) {
  VerifyOptions options = options_for({4});
  options.phases = {Phase::prefill};
  options.inputs.tokens = 1;
  for (const std::string plan : {"megatron", kSequenceParallel}) {
    const VerifyReport report = report_of("tiny-llama", options, plan);
    EXPECT_TRUE(report.passed()) << failures(report);
  }
}

// A query that sees one key is that key's value: two heads that one kv head serves are alike, and so are slices of them.
TEST(Verify, OneTokenWhereRanksSliceHeadsOfOneKvHead) {
  VerifyOptions options = options_for({8}, {DType::f64, DType::bf16});
  options.phases = {Phase::prefill};
  options.inputs.tokens = 1;
  const VerifyReport report = report_of("tiny-llama", options, "row_first");
  EXPECT_TRUE(report.passed()) << failures(report);
}

TEST(Verify, WireAndOrderOfReductions) {
  for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::tree, ReduceOrder::one_shot,
                                  ReduceOrder::two_shot, ReduceOrder::nvls, ReduceOrder::fixed_tree}) {
    for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
      VerifyOptions options = options_for({3, 4}, {DType::bf16, DType::f16});
      options.phases = {Phase::decode};
      options.reduction = {ReduceOp::sum, order, hop};
      for (const std::optional<DType> wire : {std::optional<DType>(), std::optional(DType::f32)}) {
        options.wire = wire;
        const VerifyReport report = report_of("tiny-llama", options);
        EXPECT_TRUE(report.passed()) << name(order) << failures(report);
        for (const CellReport& cell : report.cells) EXPECT_EQ(cell.wire, wire.value_or(cell.dtype));
      }
    }
  }
}

TEST(Verify, SequenceParallelPlan) {
  const VerifyReport report = report_of("tiny-llama", options_for({2, 3}), kSequenceParallel);
  EXPECT_TRUE(report.passed()) << failures(report);
}

// Two axes: the MLP is cut over both and reduced over one after the other; between the two the sum is still partial.
TEST(Verify, TwoAxes) {
  const std::string plan = R"plan({ "name": "two", "mesh": ["x", "y"],
    "weights": {
      "embed_tokens": {"x": "shard(vocab)"}, "lm_head": {"x": "shard(vocab)", "y": "shard(vocab)"},
      "layers.*.self_attn.q_proj": {"x": "shard(out by head)"}, "layers.*.self_attn.{k,v}_proj": {"x": "shard(out by kv_head)"},
      "layers.*.self_attn.o_proj": {"x": "shard(in by head)"},
      "layers.*.mlp.{gate,up}_proj": {"x": "shard(out)", "y": "shard(out)"},
      "layers.*.mlp.down_proj": {"x": "shard(in)", "y": "shard(in)"} },
    "collectives": {
      "embed_tokens.out": "all_reduce(sum, x)", "layers.*.self_attn.o_proj.out": "all_reduce(sum, x)",
      "layers.*.mlp.down_proj.out": ["all_reduce(sum, x)", "all_reduce(sum, y)"],
      "lm_head.out": "all_gather(vocab, [x, y])" } })plan";
  VerifyOptions options = options_for({}, {DType::f64, DType::bf16});
  options.meshes = {Mesh{{{"x", 2}, {"y", 2}}}, Mesh{{{"x", 2}, {"y", 3}}},
                    Mesh{{{"x", 1}, {"y", 2}}}, Mesh{{{"x", 4}, {"y", 1}}}};
  for (const std::optional<DType> wire : {std::optional<DType>(), std::optional(DType::f32)}) {
    options.wire = wire;
    const VerifyReport report = report_of("tiny-llama", options, plan);
    EXPECT_TRUE(report.passed()) << failures(report);
    EXPECT_EQ(report.cells.size(), 4u * 2u * 2u);
    EXPECT_THAT(report.cells[0].repro, HasSubstr(" --mesh x=2,y=2"));
  }
}

// A slice of columns is a view, and reductions take contiguous tensors.
TEST(Verify, ASumAfterASliceOfColumns) {
  const std::string plan = R"plan({ "name": "two", "mesh": ["x", "y"], "weights": { "lm_head": {"x": "shard(in)"} },
    "collectives": {
      "lm_head.in": "slice(features, x)",
      "lm_head.out": ["slice(features, y)", "all_reduce(sum, x)", "all_gather(features, y)"] } })plan";
  VerifyOptions options = options_for({}, {DType::f64, DType::bf16});
  options.meshes = {Mesh{{{"x", 2}, {"y", 3}}}};
  const VerifyReport report = report_of("tiny-llama", options, plan);
  EXPECT_TRUE(report.passed()) << failures(report);
}

// Synthetic weights have outlier channels 8 times the rest; biases and norm weights differ per channel.
TEST(Verify, SyntheticWeights) {
  ModelOptions synthetic;
  synthetic.random_seed = 7;
  for (const std::string model : {"tiny-llama", "tiny-gpt2"}) {
    const VerifyReport report = verify(load_model(model, synthetic), load_plan("megatron"),
                                       options_for({2, 3}, {DType::f64, DType::bf16}),
                                       builtin_parts());
    EXPECT_TRUE(report.passed()) << failures(report);
  }
}

// ---- the cells and their gates ----

TEST(Verify, CellsStandAsTheyWereAskedFor) {
  VerifyOptions options = options_for({3, 1, 2}, {DType::bf16, DType::f64});
  options.phases = {Phase::decode, Phase::prefill};
  const VerifyReport report = report_of("tiny-llama", options);
  std::vector<std::string> cells;
  for (const CellReport& cell : report.cells)
    cells.push_back(to_string(cell.mesh) + " " + std::string(name(cell.dtype)) + " " +
                    std::string(name(cell.phase)));
  EXPECT_THAT(cells, ElementsAre("tp=3 bf16 decode", "tp=3 bf16 prefill", "tp=3 f64 decode",
                                 "tp=3 f64 prefill", "tp=1 bf16 decode", "tp=1 bf16 prefill",
                                 "tp=1 f64 decode", "tp=1 f64 prefill", "tp=2 bf16 decode",
                                 "tp=2 bf16 prefill", "tp=2 f64 decode", "tp=2 f64 prefill"));
}

TEST(Verify, EveryCellRunsItsGates) {
  const VerifyReport report = report_of("tiny-llama", options_for({1, 2}, {DType::f64, DType::bf16}));
  for (const CellReport& cell : report.cells) {
    const bool f64 = cell.dtype == DType::f64;
    for (const Gate gate : kGates) {
      const GateResult& result = cell.gates.at(gate);
      const bool ran = gate == Gate::g0 || gate == Gate::audit || gate == Gate::g3 ||
                       gate == (f64 ? Gate::g2 : Gate::g4);
      EXPECT_EQ(result.ran, ran) << name(gate);
      EXPECT_EQ(result.passed, ran) << name(gate) << ": a gate that was not run must not look passed";
      const bool bitwise = gate == Gate::g0 || gate == Gate::audit;
      EXPECT_EQ(result.margin.has_value(), ran && !bitwise) << name(gate);
      if (result.margin) {
        EXPECT_GE(*result.margin, 1.0);
      }
    }
    EXPECT_FALSE(cell.first.has_value());
    ASSERT_TRUE(cell.worst.has_value());
    EXPECT_EQ(cell.worst->margin(), *cell.gates.at(Gate::g3).margin);
    EXPECT_EQ(cell.collectives,
              cell.mesh.ranks() == 1 ? 0 : (cell.phase == Phase::prefill ? 8 : 4 * 8));
  }
}

TEST(Verify, ReportNamesTheArithmetic) {
  const VerifyReport report = report_of("tiny-llama", options_for({2}, {DType::f64, DType::bf16}));
  EXPECT_THAT(report.arithmetic.at("bf16"),
              AllOf(HasSubstr("f32 accumulate"), HasSubstr("24 fraction bits")));
  EXPECT_THAT(report.arithmetic.at("f64"), HasSubstr("f64 accumulate"));
}

TEST(Verify, EachCellCanBeRepeated) {
  VerifyOptions options = options_for({2, 3}, {DType::bf16});
  options.wire = DType::f32;
  const VerifyReport report = report_of("tiny-llama", options);
  EXPECT_EQ(
      report.cells[2].repro,
      "shardcheck verify M --plan P --tp 3 --ids-for 2,3 --dtype bf16 --phase prefill --wire f32");
}

TEST(Verify, ProgressGoesForward) {
  VerifyOptions options = options_for({1, 2}, {DType::f32});
  double last = 0.0;
  options.progress = [&](const std::string& what, double done) {
    EXPECT_FALSE(what.empty());
    if (done < 0.0) return;  // no news of how far it is
    EXPECT_GE(done, last);
    last = done;
  };
  report_of("tiny-llama", options);
  EXPECT_EQ(last, 1.0);
}

// ---- refused before anything runs ----

TEST(Verify, MoreRanksThanHeads) {
  const std::string message = input_error([] {
    report_of("tiny-llama-bias", options_for({2, 6}));
  });
  EXPECT_THAT(message, AllOf(HasSubstr("5"), HasSubstr("6")));
}

TEST(Verify, DeviceThatIsNotThere) {
  VerifyOptions options = options_for({2});
  options.device = "abacus";
  EXPECT_THAT(input_error([&] { report_of("tiny-llama", options); }),
              AllOf(HasSubstr("abacus"), HasSubstr("cpu")));
  options.device = "meta";
  EXPECT_THAT(input_error([&] { report_of("tiny-llama", options); }),
              HasSubstr("no values to compare"));
}

TEST(Verify, NothingToDecode) {
  VerifyOptions options = options_for({2});
  options.inputs.tokens = 1;
  EXPECT_THAT(input_error([&] { report_of("tiny-llama", options); }),
              HasSubstr("no sequence has a token left"));
}

// ---- verdicts ----

/// A checkpoint whose MLP is dead: everything agrees with everything, and zeros with zeros prove nothing.
class DeadMlp final : public WeightSource {
 public:
  explicit DeadMlp(std::unique_ptr<const WeightSource> real) : real_(std::move(real)) {}
  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return real_->shape(tensor);
  }
  DType dtype(std::string_view tensor) const override { return real_->dtype(tensor); }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    real_->read_rows(tensor, begin, end, out);
    if (dead(tensor)) std::fill(out.begin(), out.end(), 0.0);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    real_->read_rows(tensor, begin, end, out);
    if (dead(tensor)) std::fill(out.begin(), out.end(), 0.0F);
  }

 private:
  static bool dead(std::string_view tensor) { return tensor == "layers.1.mlp.up_proj.weight"; }
  std::unique_ptr<const WeightSource> real_;
};

TEST(Verify, ZerosThatAgreeAreMistrusted) {
  const Config config = load_model("tiny-llama").config();
  const std::vector<Module> parts = modules(config);
  const Model model(config, std::make_unique<DeadMlp>(synthetic_source(3, parts)));
  const VerifyReport report = verify(model, load_plan("megatron"),
                                     options_for({2}, {DType::f64, DType::bf16}), builtin_parts());
  EXPECT_EQ(report.count(Verdict::mistrusted), report.cells.size());
  EXPECT_FALSE(report.passed());
  for (const CellReport& cell : report.cells) {
    for (const auto& [gate, result] : cell.gates)
      EXPECT_TRUE(!result.ran || result.passed) << name(gate);
    EXPECT_FALSE(cell.first.has_value());
    EXPECT_THAT(cell.mistrust.at(0), HasSubstr("layers.1.mlp.up_proj of rank 0"));
  }
  EXPECT_THAT(verify_table(report, false),
              AllOf(HasSubstr("mistrusted"), HasSubstr("0 passed, 4 failed (4 mistrusted)")));
}

// An op that nobody knows how to recompute can't pass.
TEST(Verify, OpWithoutALocalCheckIsMistrusted) {
  VerifyParts parts = builtin_parts();
  LocalOps fewer;
  for (const std::string& op : parts.ops.names()) {
    const LocalOp* known = parts.local_ops.find(op);
    if (known != nullptr && op != "gate") fewer.add(op, *known);
  }
  parts.local_ops = fewer;
  const VerifyReport report = verify(load_model("tiny-llama"), load_plan("megatron"),
                                     options_for({2}, {DType::f32}), parts);
  EXPECT_FALSE(report.passed());
  for (const CellReport& cell : report.cells) {
    EXPECT_NE(cell.verdict, Verdict::passed);
    EXPECT_THAT(cell.mistrust.at(0),
                AllOf(HasSubstr("layers.0.mlp.act"), HasSubstr("no local check for op 'gate'")));
  }
}

// ---- reports ----

// A program that calls verify has no command line to repeat.
TEST(Verify, WithoutACommandNoneIsShownToRepeat) {
  const Plan plan = parse_plan(R"json({"name": "no-sum", "mesh": ["tp"], "weights": {
      "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"}}})json",
                               "no-sum.json");
  VerifyOptions options = options_for({2}, {DType::f32});
  options.force = true;
  EXPECT_THAT(verify_table(verify(load_model("tiny-llama"), plan, options, builtin_parts()), false),
              HasSubstr("repeat           shardcheck verify M --plan P"));
  options.repro.clear();
  const VerifyReport report = verify(load_model("tiny-llama"), plan, options, builtin_parts());
  EXPECT_EQ(report.cells.at(0).repro, "");
  EXPECT_THAT(verify_table(report, false), AllOf(HasSubstr("first wrong tap"), ::testing::Not(HasSubstr("repeat"))));
}

TEST(Verify, JsonHoldsEveryCell) {
  VerifyOptions options = options_for({1, 3}, {DType::f64, DType::bf16});
  options.phases = {Phase::prefill};
  const VerifyReport report = report_of("tiny-llama", options);
  const Json json = Json::parse(verify_json(report));
  EXPECT_EQ(json["schema"], "shardcheck.verify/1");
  EXPECT_EQ(json["model"], "tiny-llama");
  EXPECT_EQ(json["plan"], "megatron");
  ASSERT_EQ(json["cells"].size(), 4u);
  EXPECT_EQ(json["summary"], Json({{"passed", 4}, {"failed", 0}, {"skipped", 0}, {"mistrusted", 0}}));
  for (const Json& cell : json["cells"]) {
    for (const char* key : {"mesh", "dtype", "wire", "phase", "verdict", "gates", "first", "worst",
                            "end_to_end", "repro"})
      EXPECT_TRUE(cell.contains(key)) << key;
    for (const char* gate : {"G0", "audit", "G1", "G2", "G3", "G4", "G5"}) {
      ASSERT_TRUE(cell["gates"].contains(gate)) << gate;
      for (const char* key : {"ran", "passed", "margin"})
        EXPECT_TRUE(cell["gates"][gate].contains(key));
    }
    EXPECT_TRUE(cell["gates"]["G0"]["margin"].is_null());
    EXPECT_FALSE(cell["gates"]["G1"]["ran"]);
    EXPECT_TRUE(cell["gates"]["G1"]["passed"].is_null());
    EXPECT_TRUE(cell["gates"]["G3"]["margin"].is_number());
    for (const char* key : {"rel_fro", "rel_max", "kl_mean", "kl_max", "top1_agree"})
      EXPECT_TRUE(cell["end_to_end"][key].is_number()) << key;
    for (const char* key : {"tap", "rank", "A", "B", "C", "limits"})
      EXPECT_TRUE(cell["worst"].contains(key)) << key;
  }
  EXPECT_EQ(json["cells"][2]["mesh"], Json({{"tp", 3}}));
}

TEST(Verify, JsonOfAFailure) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.after = [](RankContext& context, const Instruction& instruction, std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.1.mlp.act" || context.rank() != 1) return;
      outputs[0] = changed(context, outputs[0], [](std::vector<double>& values, std::size_t cols) {
        values[2 * cols + 5] = std::numeric_limits<double>::infinity();
      });
    };
    return made;
  };
  const VerifyReport report = verified({"tiny-llama", 2, DType::bf16}, fault);
  const Json cell = Json::parse(verify_json(report))["cells"][0];
  EXPECT_EQ(cell["verdict"], "failed");
  EXPECT_EQ(cell["first"]["gate"], "G3");
  EXPECT_EQ(cell["first"]["tap"], "layers.1.mlp.act");
  EXPECT_EQ(cell["first"]["phase"], "prefill");
  EXPECT_EQ(cell["first"]["step"], 0);
  EXPECT_EQ(cell["first"]["ranks"], Json::array({1}));
  EXPECT_EQ(cell["first"]["index"], Json::array({2, 68 + 5}));
  EXPECT_EQ(cell["first"]["local_index"], Json::array({2, 5}));
  EXPECT_EQ(cell["first"]["got"], "inf");
  EXPECT_TRUE(cell["first"]["expected"].is_number());
  EXPECT_TRUE(cell["first"].contains("cause"));
  EXPECT_EQ(cell["end_to_end"]["rel_fro"], "nan");
  const std::string table = verify_table(report, false);
  EXPECT_THAT(table, AllOf(HasSubstr("first wrong tap  layers.1.mlp.act (rank 1, gate G3"),
                           HasSubstr("got inf"), HasSubstr("0 passed, 1 failed")));
}

TEST(Verify, ColorOnlyWhenAskedFor) {
  const VerifyReport report = report_of("tiny-llama", options_for({2}, {DType::f32}));
  EXPECT_EQ(verify_table(report, false).find('\x1b'), std::string::npos);
  EXPECT_NE(verify_table(report, true).find('\x1b'), std::string::npos);
}

TEST(Verify, DumpsOneFolderPerCell) {
  const TempFolder folder;
  VerifyOptions options = options_for({1, 2}, {DType::f32, DType::bf16});
  options.dump = folder.path() / "all";
  const VerifyReport report = report_of("tiny-llama", options);
  EXPECT_TRUE(report.passed());
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(options.dump))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("tp-1-f32-prefill", "tp-1-f32-decode",
                                                     "tp-1-bf16-prefill", "tp-1-bf16-decode",
                                                     "tp-2-f32-prefill", "tp-2-f32-decode",
                                                     "tp-2-bf16-prefill", "tp-2-bf16-decode"));
  const VerifyParts parts = builtin_parts();
  const Model model = load_model("tiny-llama");
  for (const std::string& name : names) {
    const Candidate candidate = read_candidate(model, parts.ops, options.dump / name);
    EXPECT_TRUE(compare_candidate(model, candidate, parts).passed()) << name;
  }
  options = options_for({2}, {DType::f32});
  options.phases = {Phase::prefill};
  options.dump = folder.path() / "one";
  report_of("tiny-llama", options);
  EXPECT_TRUE(std::filesystem::exists(options.dump / "manifest.json"));
}

}  // namespace
}  // namespace shardcheck::testing
