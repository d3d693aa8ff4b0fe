// SPDX-License-Identifier: Apache-2.0
// Fusion: the fused program has the values of the other one, bit for bit, moves fewer bytes, and is not made where the
// two ops don't meet.
#include "sharded/fusion.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "sharded/placement_rules.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t kVocab = 257;

/// Megatron with the residual stream cut along the tokens.
Plan sequence_parallel() {
  const std::string cuts = fmt::format("{}, {}, {}, {}", kEmbedCut, kAttentionCuts, kMlpCuts, kHeadCut);
  return tp_plan(cuts, R"json("embed_tokens.out": "reduce_scatter(sum, tokens, tp)",
      "layers.*.self_attn.q_proj.in": "all_gather(tokens, tp)",
      "layers.*.self_attn.o_proj.out": "reduce_scatter(sum, tokens, tp)",
      "layers.*.mlp.gate_proj.in": "all_gather(tokens, tp)",
      "layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
      "lm_head.in": "all_gather(tokens, tp)", "lm_head.out": "all_gather(vocab, tp)")json");
}

/// A prompt in pieces with a second sequence, then decode.
std::vector<Step> steps() {
  return {prefill({6, 3}, kVocab),
          {Phase::prefill, 1, {{0, 6, 3}, {1, 3, 0}}, {7, 251, 96}},
          {Phase::decode, 0, {{0, 9, 1}, {1, 3, 1}}, {42, 5}},
          {Phase::decode, 1, {{1, 4, 1}}, {256}}};
}

struct Case {
  SmallModel model;
  Plan plan;
  int fused;  // in a program of two layers
};

std::vector<Case> cases() {
  // Two adds a layer; the norm that reads the second stands in the next layer, or before the head.
  return {{{}, megatron(), 4},
          {{.model_type = "qwen2", .tied = true}, megatron(), 4},
          {{.model_type = "llama", .biases = true}, megatron(), 4},
          {{.model_type = "mistral", .window = 3}, megatron(), 4},
          {{}, load_plan("replicated"), 4},
          {{}, sequence_parallel(), 4},
          {{.model_type = "gpt2"}, megatron(), 0}};  // LayerNorm has no such primitive
}

Ran run_case(const Case& at, int tp, const RunSettings& settings, bool fuse, const Registry& ops,
             const std::string& device = "cpu") {
  RunSetup setup;
  setup.settings = settings;
  setup.fuse = fuse;
  setup.device = device;
  if (device == "meta") setup.world = "solo";
  return run(make_model(at.model), at.plan, line(tp), steps(), ops, setup);
}

void expect_same_taps(const Ran& plain, const Ran& fused) {
  ASSERT_EQ(plain.taps->parts().size(), fused.taps->parts().size());
  for (const auto& [key, parts] : plain.taps->parts()) {
    const auto twin = fused.taps->parts().find(key);
    ASSERT_NE(twin, fused.taps->parts().end()) << std::get<2>(key);
    EXPECT_EQ(parts.layout, twin->second.layout) << std::get<2>(key);
    ASSERT_EQ(parts.ranks.size(), twin->second.ranks.size());
    for (std::size_t rank = 0; rank < parts.ranks.size(); ++rank) {
      EXPECT_TRUE(parts.ranks[rank].bitwise_equal(twin->second.ranks[rank]))
          << std::get<2>(key) << " of rank " << rank;
    }
  }
}

std::vector<LedgerRecord> records(const Ledger& ledger, LedgerRecord::Kind kind) {
  std::vector<LedgerRecord> found;
  std::copy_if(ledger.begin(), ledger.end(), std::back_inserter(found),
               [&](const LedgerRecord& record) { return record.kind == kind; });
  return found;
}

std::int64_t moved_bytes(const Ledger& ledger) {
  std::int64_t bytes = 0;
  for (const LedgerRecord& record : ledger) bytes += record.moved_bytes;
  return bytes;
}
std::int64_t flops(const Ledger& ledger) {
  std::int64_t sum = 0;
  for (const LedgerRecord& record : ledger) sum += record.flops;
  return sum;
}

/// Bytes of the sums that a rank's fused ops don't read back, over all steps.
std::int64_t saved_bytes(const Ran& fused, int rank, DType storage) {
  std::int64_t bytes = 0;
  for (const auto& [key, parts] : fused.taps->parts()) {
    const auto& [phase, step, name] = key;
    for (const Instruction& instruction : fused.program.instructions.at(phase)) {
      if (instruction.parts.empty() || instruction.site != name) continue;
      bytes += static_cast<std::int64_t>(parts.ranks[static_cast<std::size_t>(rank)].elements() *
                                         static_cast<std::int64_t>(element_size(storage)));
    }
  }
  return bytes;
}

TEST(Fusion, GivesTheSameTapsBitForBit) {
  const Registry ops = builtin_ops();
  for (const Case& at : cases()) {
    for (const int tp : {1, 2, 3, 4}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const ::testing::ScopedTrace trace(
            __FILE__, __LINE__,
            fmt::format("{} {} tp={} {}", at.model.model_type, at.plan.name, tp, name(dtype)));
        const RunSettings settings{dtype, dtype, {}};
        const Ran plain = run_case(at, tp, settings, false, ops);
        const Ran fused = run_case(at, tp, settings, true, ops);
        EXPECT_EQ(fused_instructions(plain.program, Phase::prefill), 0);
        EXPECT_EQ(fused_instructions(fused.program, Phase::prefill), at.fused);
        EXPECT_EQ(fused_instructions(fused.program, Phase::decode), at.fused);
        expect_same_taps(plain, fused);
      }
    }
  }
}

TEST(Fusion, MovesFewerBytesAndComputesAsMuch) {
  const Registry ops = builtin_ops();
  for (const Case& at : cases()) {
    for (const int tp : {1, 3}) {
      const ::testing::ScopedTrace trace(
          __FILE__, __LINE__, fmt::format("{} {} tp={}", at.model.model_type, at.plan.name, tp));
      const RunSettings settings{DType::bf16, DType::f32, {}};
      const Ran plain = run_case(at, tp, settings, false, ops);
      const Ran fused = run_case(at, tp, settings, true, ops);
      const Ran shapes = run_case(at, tp, settings, true, ops, "meta");
      EXPECT_EQ(shapes.result.ledgers, fused.result.ledgers);
      for (int rank = 0; rank < tp; ++rank) {
        const Ledger& before = plain.result.ledgers[static_cast<std::size_t>(rank)];
        const Ledger& after = fused.result.ledgers[static_cast<std::size_t>(rank)];
        EXPECT_EQ(records(before, LedgerRecord::Kind::collective),
                  records(after, LedgerRecord::Kind::collective));
        EXPECT_EQ(after.size() + steps().size() * static_cast<std::size_t>(at.fused), before.size());
        EXPECT_EQ(moved_bytes(before) - moved_bytes(after), saved_bytes(fused, rank, DType::bf16));
        EXPECT_EQ(flops(before), flops(after));
        if (at.fused > 0) {
          EXPECT_LT(moved_bytes(after), moved_bytes(before));
        }
      }
    }
  }
}

/// Sites of a phase's fused instructions, and the modules of their norms.
std::vector<std::pair<std::string, std::string>> fused_pairs(const Program& program,
                                                             Phase phase = Phase::prefill) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Instruction& instruction : program.instructions.at(phase)) {
    if (!instruction.parts.empty()) pairs.emplace_back(instruction.site, instruction.module);
  }
  return pairs;
}

Program fused_program(const Plan& plan, int tp, const Registry& ops, const SmallModel& model = {}) {
  return fuse(program_of(make_model(model), plan, line(tp), ops), ops);
}

const std::string kAllCuts = fmt::format("{}, {}, {}, {}", kEmbedCut, kAttentionCuts, kMlpCuts,
                                         kHeadCut);
const std::string kAllSums = fmt::format("{}, {}, {}, {}", kEmbedSum, kAttentionSum, kMlpSum,
                                         kHeadGather);

TEST(Fusion, JoinsEachAddWithTheNormOfItsSum) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const Registry ops = builtin_ops();
  const Pairs all{{"layers.0.self_attn.resid", "layers.0.post_attention_layernorm"},
                  {"layers.0", "layers.1.input_layernorm"},
                  {"layers.1.self_attn.resid", "layers.1.post_attention_layernorm"},
                  {"layers.1", "norm"}};
  EXPECT_EQ(fused_pairs(fused_program(megatron(), 3, ops)), all);
}

TEST(Fusion, LeavesAlone) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  const Registry ops = builtin_ops();
  // A collective between the sum and its norm: the last norm's input is cut and gathered; and at a TP of 1, where it isn't.
  const Plan between = tp_plan(
      kAllCuts, kAllSums + R"json(, "norm.in": ["slice(tokens, tp)", "all_gather(tokens, tp)"],
                                 "layers.1.input_layernorm.in": "broadcast(0, tp)")json");
  const Pairs some{{"layers.0.self_attn.resid", "layers.0.post_attention_layernorm"},
                   {"layers.1.self_attn.resid", "layers.1.post_attention_layernorm"}};
  EXPECT_EQ(fused_pairs(fused_program(between, 2, ops)), some);
  EXPECT_EQ(fused_pairs(fused_program(between, 1, ops)).size(), 4u);

  // Only in one phase.
  const Plan decode = tp_plan(
      kAllCuts, kAllSums,
      R"json(, "phase": {"decode": {"layers.*.input_layernorm.in": "broadcast(0, tp)"}})json");
  const Program phases = fused_program(decode, 2, ops);
  EXPECT_EQ(fused_pairs(phases, Phase::prefill).size(), 4u);
  EXPECT_EQ(fused_pairs(phases, Phase::decode).size(), 3u);

  // Partial sums that a forced plan takes for the whole: without the reduction of down_proj they meet a residual that is
  // whole, and the sum is no value to fuse into.
  const Plan partial = tp_plan(kAllCuts, fmt::format("{}, {}", kAttentionSum, kHeadGather));
  const Program forced = fused_program(partial, 2, ops);
  EXPECT_FALSE(forced.findings.empty());
  for (const auto& [site, module] : fused_pairs(forced)) {
    for (const Instruction& instruction : forced.instructions.at(Phase::prefill)) {
      if (instruction.site != site) continue;
      for (const int input : instruction.inputs)
        EXPECT_FALSE(forced.value(input).layout.any_partial()) << site;
    }
  }
}

/// An op of the user's own under a built-in name.
class OwnNorm final : public Op {
 public:
  std::string_view name() const override { return "rms_norm"; }
  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }
  Placed place(const PlaceQuery& query) const override { return place_statistic(query); }
  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>&,
            const std::vector<Extent>&) const override {
    return {};
  }
  std::vector<Tensor> run(const Instruction&, RankContext&,
                          const std::vector<Tensor>& inputs) const override {
    return {inputs[0]};
  }
};

TEST(Fusion, DoesNotStandForAnOpOfTheUsersOwn) {
  Registry ops = builtin_ops();
  ops.add(std::make_unique<OwnNorm>());
  EXPECT_TRUE(fused_pairs(fused_program(megatron(), 2, ops)).empty());
}

TEST(Fusion, KeepsValuesFindingsAndResult) {
  const Registry ops = builtin_ops();
  const Program plain = program_of(make_model({}), megatron(), line(4), ops);
  const Program fused = fuse(plain, ops);
  EXPECT_EQ(fused.result, plain.result);
  ASSERT_EQ(fused.values.size(), plain.values.size());
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    std::vector<int> before, after;
    for (const Instruction& i : plain.instructions.at(phase))
      before.insert(before.end(), i.outputs.begin(), i.outputs.end());
    for (const Instruction& i : fused.instructions.at(phase))
      after.insert(after.end(), i.outputs.begin(), i.outputs.end());
    EXPECT_EQ(before, after);
    const std::vector<Instruction>& list = plain.instructions.at(phase);
    const std::vector<const Instruction*> again = unfused(fused, phase);
    ASSERT_EQ(again.size(), list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(again[i]->site, list[i].site);
      EXPECT_EQ(again[i]->op, list[i].op);
      EXPECT_EQ(again[i]->module, list[i].module);
      EXPECT_EQ(again[i]->inputs, list[i].inputs);
    }
  }
}

/// Makes one output of one rank's fused ops wrong before it is read.
class Nudge final : public Interposer {
 public:
  Nudge(int rank, std::size_t output) : rank_(rank), output_(output) {}
  void after(RankContext& context, const Instruction& instruction,
             std::vector<Tensor>& outputs) override {
    if (context.rank() != rank_ || instruction.site != "layers.0.self_attn.resid") return;
    const Tensor& right = outputs[output_];
    HostTensor host = context.device().to_host(context.stream(), right);
    const auto flipped = host.as_mutable<std::uint16_t>();
    flipped[0] = static_cast<std::uint16_t>(flipped[0] ^ 1u);  // the last bit of the first element
    Tensor wrong = context.device().allocate(context.stream(), right.dtype, right.rows, right.cols);
    context.device().upload(context.stream(), host, wrong);
    outputs[output_] = wrong;
  }

 private:
  int rank_;
  std::size_t output_;
};

TEST(Fusion, TheWiringCheckKnowsTheBitsOfBothParts) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const std::vector<Step> step{prefill({5}, kVocab)};
  const Program program = fused_program(megatron(), 2, ops);
  for (const std::size_t output : {0u, 1u}) {
    Nudge fault(1, output);
    const auto device = builtin_devices().make("cpu");
    Device* const devices[] = {device.get()};
    const auto world = builtin_worlds().make("threads", line(2));
    WeightStore weights(model, DType::bf16);
    RunOptions options;
    options.check_wiring = true;
    options.interposer = &fault;
    const RunResult result = run_program(program, *world, devices, weights,
                                         {DType::bf16, DType::bf16, {}}, step, options);
    ASSERT_FALSE(result.wiring.empty());
    EXPECT_EQ(result.wiring[0].rank, 1);
    EXPECT_EQ(result.wiring[0].part, output == 0 ? "add" : "rms_norm");
    EXPECT_EQ(result.wiring[0].value,
              output == 0 ? "layers.0.self_attn.resid" : "layers.0.post_attention_layernorm");
    for (const WiringMismatch& mismatch : result.wiring) EXPECT_EQ(mismatch.rank, 1);
  }
}

}  // namespace
}  // namespace shardcheck
