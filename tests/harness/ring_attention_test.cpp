// SPDX-License-Identifier: Apache-2.0
// An op from outside (docs/examples/ring_attention.cpp), asked for by a plan, goes through lint, prove, verify and cost as a
// built-in one does, and its mistakes are caught.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "docs/examples/ring_attention.hpp"
#include "harness/lint.hpp"
#include "harness/matcher.hpp"
#include "harness/prove.hpp"
#include "harness/trace.hpp"
#include "model/error.hpp"
#include "model/model.hpp"
#include "sharded/rank_context.hpp"
#include "sim/algorithm.hpp"
#include "sim/cost.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

// Tokens over cp, heads over tp: a ring for each part of the heads.
constexpr const char* kRingAndHeads = R"plan({ "name": "ring-and-heads", "mesh": ["cp", "tp"],
  "weights": {
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"} },
  "collectives": {
    "embed_tokens.out": "slice(tokens, cp)",
    "layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)",
    "lm_head.out": "all_gather(tokens, cp)" },
  "ops": { "layers.*.self_attn.attn": "ring_attention" } })plan";

Plan ring_plan() { return load_plan(SHARDCHECK_SOURCE_DIR "/docs/examples/ring.json"); }
Mesh cp(int size) { return {{{"cp", size}}}; }

VerifyOptions options_for(std::vector<Mesh> meshes) {
  VerifyOptions options;
  options.meshes = std::move(meshes);
  options.dtypes = {DType::f64, DType::bf16};
  options.phases = {Phase::prefill, Phase::decode};
  options.inputs.lengths = {11, 2, 6};
  options.inputs.decode_steps = 3;
  return options;
}

ProveOptions proof_of(std::vector<Mesh> meshes) {
  ProveOptions options;
  options.meshes = std::move(meshes);
  options.phases = {Phase::prefill, Phase::decode};
  return options;
}

TEST(RingAttention, PassesLintProveAndVerify) {
  const VerifyParts parts = ring::parts_with_ring_attention();
  for (const char* name : {"tiny-llama", "tiny-mistral", "tiny-qwen2"}) {
    SCOPED_TRACE(name);
    const Model model = load_model(name);
    const std::vector<Mesh> meshes{cp(1), cp(2), cp(3), cp(4)};
    EXPECT_THAT(lint(model, ring_plan(), meshes, parts.ops), passes());
    EXPECT_THAT(prove(model, ring_plan(), proof_of(meshes), parts), passes());
    EXPECT_THAT(verify(model, ring_plan(), options_for(meshes), parts), passes());
  }
}

TEST(RingAttention, PromptsInChunksAndHeadsCutToo) {
  const VerifyParts parts = ring::parts_with_ring_attention();
  const Model model = load_model("tiny-mistral");
  VerifyOptions options = options_for({cp(3)});
  options.inputs.chunk = 4;
  EXPECT_THAT(verify(model, ring_plan(), options, parts), passes());

  const Plan both = parse_plan(kRingAndHeads, "ring-and-heads.json");
  const std::vector<Mesh> meshes{{{{"cp", 2}, {"tp", 2}}}, {{{"cp", 3}, {"tp", 1}}}};
  EXPECT_THAT(lint(model, both, meshes, parts.ops), passes());
  EXPECT_THAT(prove(model, both, proof_of(meshes), parts), passes());
  EXPECT_THAT(verify(model, both, options_for(meshes), parts), passes());
}

TEST(RingAttention, ItsMessagesAreCosted) {
  const VerifyParts parts = ring::parts_with_ring_attention();
  const Model model = load_model("tiny-llama");
  TraceOptions options;
  options.settings = {DType::bf16, DType::bf16, {}};
  options.sequence = 16;
  const Program program = build_program(model, resolve(ring_plan(), model, cp(4)), parts.ops);
  const sim::RunLoad load = trace(model, program, Phase::prefill, options, parts);
  const std::vector<sim::Link> links{sim::load_link("nvlink4-nvswitch3")};
  const std::vector<sim::CostRow> rows =
      sim::costs({&load, 1}, links, sim::load_gpu("h100"), sim::AlphaBetaModel());
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_TRUE(rows[0].communication.has_value()) << rows[0].problem;
  // Three rounds of two messages in each layer, 4 tokens of every kv head in two bytes each.
  const Config& config = model.config();
  const std::int64_t message = 4 * config.kv_size() * 2;
  std::int64_t calls = 0, bytes = 0;
  for (const sim::KindCost& kind : rows[0].collectives) {
    if (kind.kind != CollectiveKind::send) continue;
    calls += kind.calls;
    bytes += static_cast<std::int64_t>(kind.payload.value);
  }
  EXPECT_EQ(calls, 3 * 2 * config.num_layers);
  EXPECT_EQ(bytes, calls * message);
}

TEST(RingAttention, WithoutTheOpThePlanIsRefused) {
  Plan plan = ring_plan();
  for (auto& [family, section] : plan.families) section.ops.clear();
  const LintReport report = lint(load_model("tiny-llama"), plan, {cp(2)}, builtin_ops());
  EXPECT_FALSE(report.passed());
  EXPECT_THAT(lint_text(report), HasSubstr("tokens_differ"));
}

TEST(RingAttention, AnOpOrValueThatIsNotThereIsNamed) {
  const auto message = [](const std::string& ops, const Registry& registry) {
    const Plan plan = parse_plan(R"({"name": "p", "mesh": ["cp"], "weights": {}, "ops": )" + ops + "}", "p.json");
    try {
      lint(load_model("tiny-llama"), plan, {cp(2)}, registry);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(message(R"({"layers.*.self_attn.atn": "ring_attention"})", builtin_ops()),
              HasSubstr("did you mean \"layers.0.self_attn.attn\"?"));
  EXPECT_THAT(message(R"({"layers.*.self_attn.attn": "ring_attention"})", builtin_ops()),
              HasSubstr("\"ring_attention\" at layers.0.self_attn.attn, but no op is called so"));
  EXPECT_THAT(message(R"({"layers.*.self_attn.attn": "a", "layers.1.self_attn.attn": "b"})", builtin_ops()),
              HasSubstr("layers.1.self_attn.attn"));
}

/// Hands the keys round twice, once in the values' place.
class KeysTwice final : public Interposer {
 public:
  bool replace(RankContext& context, const Instruction& instruction, const std::vector<Tensor>& inputs,
               std::vector<Tensor>& outputs) override {
    if (instruction.op == nullptr || instruction.op->name() != "ring_attention") return false;
    outputs = instruction.op->run(instruction, context, {inputs[0], inputs[1], inputs[1]});
    return true;
  }
};

TEST(RingAttention, AMistakeInItIsCaught) {
  const VerifyParts parts = ring::parts_with_ring_attention();
  const Model model = load_model("tiny-llama");
  ProveOptions proof = proof_of({cp(2)});
  proof.phases = {Phase::prefill};
  proof.fault = [](const Program&, const RunSettings&, Phase) { return std::make_unique<KeysTwice>(); };
  const ProveReport report = prove(model, ring_plan(), proof, parts);
  ASSERT_EQ(report.cells.size(), 1u);
  EXPECT_NE(report.cells[0].verdict, ProofVerdict::equal);
  ASSERT_TRUE(report.cells[0].first.has_value());
  EXPECT_EQ(report.cells[0].first->tap, "layers.0.self_attn.attn");

  VerifyOptions options = options_for({cp(2)});
  options.fault = proof.fault;
  const VerifyReport verified = verify(model, ring_plan(), options, parts);
  for (const CellReport& cell : verified.cells) {
    EXPECT_EQ(cell.verdict, Verdict::failed);
    ASSERT_TRUE(cell.first.has_value());
    EXPECT_EQ(cell.first->tap, "layers.0.self_attn.attn");
  }
}

}  // namespace
}  // namespace shardcheck::testing
