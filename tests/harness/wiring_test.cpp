// SPDX-License-Identifier: Apache-2.0
#include "harness/wiring.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

RunOf batch(const std::string& model, int tp, Phase phase = Phase::decode) {
  RunOf what;
  what.model = model;
  what.mesh = Mesh{{{"tp", tp}}};
  what.settings = {DType::bf16, DType::bf16, {}};
  what.phase = phase;
  what.lengths = {5, 1, 17};
  what.chunk = 4;
  return what;
}

std::vector<HostTensor>& parts(RanProgram& ran, std::size_t step, const std::string& tap) {
  StepTaps& taps = ran.taps.steps[step];
  return taps.values.at(taps.index.at(tap)).ranks;
}

/// A copy of a tensor with one byte of one row changed.
HostTensor flipped(const HostTensor& tensor, std::int64_t row) {
  HostTensor copy(tensor.dtype(), tensor.shape());
  std::copy_n(tensor.data(), tensor.bytes(), copy.mutable_data());
  const std::size_t stride = tensor.bytes() / static_cast<std::size_t>(tensor.rows());
  copy.mutable_data()[static_cast<std::size_t>(row) * stride] ^= std::byte{1};
  return copy;
}

TEST(Wiring, RightRunsHaveNoFault) {
  for (const std::string model :
       {"tiny-llama", "tiny-mistral", "tiny-gpt2", "tiny-odd-vocab", "tiny-llama-bias", "tiny-qwen3",
        "tiny-olmo2", "tiny-phi3"}) {
    for (const int tp : {1, 2, 4}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const auto ran = run_of(batch(model, tp, phase));
        EXPECT_TRUE(check_replicas(ran->program, ran->taps).empty()) << model << " " << tp;
        EXPECT_TRUE(check_caches(ran->program, ran->taps).empty()) << model << " " << tp;
        EXPECT_TRUE(ran->result.wiring.empty()) << model << " " << tp;
        EXPECT_GT(ran->result.wiring_checks, 100);
      }
    }
  }
}

// One token on four ranks, and ranks whose part of the tokens is empty.
TEST(Wiring, EmptyPartsHaveNoFault) {
  RunOf what;
  what.plan = kSequenceParallel;
  what.mesh = Mesh{{{"tp", 4}}};
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{1}, {2}, {5}}) {
    what.lengths = lengths;
    const auto ran = run_of(what);
    EXPECT_TRUE(check_replicas(ran->program, ran->taps).empty());
    EXPECT_TRUE(check_caches(ran->program, ran->taps).empty());
    EXPECT_TRUE(ran->result.wiring.empty());
  }
}

// 3 kv heads on 9 ranks: three ranks hold the same head and compute it from matrices of one shape.
TEST(Wiring, KvHeadsOfSeveralRanksAreReplicas) {
  const auto ran = run_of(batch("tiny-odd-vocab", 9, Phase::prefill));
  EXPECT_TRUE(check_replicas(ran->program, ran->taps).empty());
  std::vector<HostTensor>& keys = parts(*ran, 0, "layers.1.self_attn.k_proj");
  ASSERT_TRUE(keys[3].bitwise_equal(keys[4]));
  keys[4] = flipped(keys[4], 0);
  const std::vector<WiringFault> faults = check_replicas(ran->program, ran->taps);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].tap, "layers.1.self_attn.k_proj");
  EXPECT_EQ(faults[0].ranks, std::vector<int>{4});
}

// On 4 ranks the third has two kv heads and the others one: matrices of other shapes, so other bits may be right.
TEST(Wiring, KvHeadsFromOtherShapesAreNotCompared) {
  const auto ran = run_of(batch("tiny-odd-vocab", 4, Phase::prefill));
  std::vector<HostTensor>& keys = parts(*ran, 0, "layers.0.self_attn.k_proj");
  ASSERT_NE(keys[2].cols(), keys[1].cols());
  keys[2] = flipped(keys[2], 0);
  EXPECT_TRUE(check_replicas(ran->program, ran->taps).empty());
}

TEST(Wiring, ReplicasNameTheOddOneOut) {
  for (const int odd : {0, 1, 2}) {
    const auto ran = run_of(batch("tiny-llama", 3));
    std::vector<HostTensor>& parts_of = parts(*ran, 1, "layers.1.mlp.down_proj");
    parts_of[static_cast<std::size_t>(odd)] = flipped(parts_of[static_cast<std::size_t>(odd)], 0);
    const std::vector<WiringFault> faults = check_replicas(ran->program, ran->taps);
    // What is computed from it differs rightly: only the collective's own output is a fault.
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].tap, "layers.1.mlp.down_proj");
    EXPECT_EQ(faults[0].ranks, std::vector<int>{odd});
    EXPECT_EQ(faults[0].phase, ran->steps[1].phase);
    EXPECT_EQ(faults[0].step, ran->steps[1].index);
    EXPECT_TRUE(faults[0].against.empty());
    EXPECT_THAT(faults[0].sentence,
                HasSubstr("rank " + std::to_string(odd) + " has other bits than rank"));
  }
}

// An op's outputs are compared where its inputs are the same bits.
TEST(Wiring, ReplicasOfAnOp) {
  const auto ran = run_of(batch("tiny-llama", 3));
  std::vector<HostTensor>& norms = parts(*ran, 0, "layers.2.input_layernorm");
  norms[1] = flipped(norms[1], 2);
  std::vector<WiringFault> faults = check_replicas(ran->program, ran->taps);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].ranks, std::vector<int>{1});
  // With other inputs on that rank it is no fault of this op.
  std::vector<HostTensor>& inputs = parts(*ran, 0, "layers.1");
  inputs[1] = flipped(inputs[1], 2);
  faults = check_replicas(ran->program, ran->taps);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].tap, "layers.1");
}

TEST(Wiring, TwoReplicasAreSettledByTheirDistance) {
  const auto ran = run_of(batch("tiny-llama", 2));
  std::vector<HostTensor>& values = parts(*ran, 0, "layers.0");
  values[0] = flipped(values[0], 1);
  std::vector<WiringFault> faults = check_replicas(ran->program, ran->taps);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].ranks, std::vector<int>{1});
  EXPECT_EQ(faults[0].against, std::vector<int>{0});
  TapScore near, far;
  near.tap = far.tap = "layers.0";
  near.b = 0.3;
  far.b = 0.4;
  near.rank = 1;
  far.rank = 0;
  const std::vector<TapScore> scores{far, near};
  settle_ties(faults, scores);
  EXPECT_EQ(faults[0].ranks, std::vector<int>{0});
  EXPECT_THAT(faults[0].sentence, HasSubstr("rank 0 has other bits than rank 1"));
  settle_ties(faults, scores);
  EXPECT_EQ(faults[0].ranks, std::vector<int>{0});
}

// ---- caches ----

TEST(Wiring, CacheRowOfAnEarlierStep) {
  for (const std::string model : {"tiny-llama", "tiny-mistral"}) {
    const auto ran = run_of(batch(model, 2));
    const std::size_t last = ran->steps.size() - 1;
    std::vector<HostTensor>& keys = parts(*ran, last, "layers.1.self_attn.k_cache");
    keys[1] = flipped(keys[1], 0);
    const std::vector<WiringFault> faults = check_caches(ran->program, ran->taps);
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].tap, "layers.1.self_attn.k_cache");
    EXPECT_EQ(faults[0].ranks, std::vector<int>{1});
    EXPECT_EQ(faults[0].phase, Phase::decode);
    EXPECT_EQ(faults[0].step, ran->steps[last].index);
    EXPECT_THAT(faults[0].sentence, HasSubstr("of sequence"));
  }
}

// Two sequences' rows exchanged: same bytes, wrong places.
TEST(Wiring, CacheRowsOfTwoSequencesExchanged) {
  const auto ran = run_of(batch("tiny-llama", 2, Phase::prefill));
  // The first step has 4, 1 and 4 tokens of the three sequences.
  std::vector<HostTensor>& values = parts(*ran, 0, "layers.0.self_attn.v_cache");
  const HostTensor& old = values[0];
  ASSERT_EQ(old.rows(), 9);
  HostTensor exchanged(old.dtype(), old.shape());
  const std::size_t stride = old.bytes() / 9;
  std::copy_n(old.data() + 5 * stride, 4 * stride, exchanged.mutable_data());
  std::copy_n(old.data() + 4 * stride, stride, exchanged.mutable_data() + 4 * stride);
  std::copy_n(old.data(), 4 * stride, exchanged.mutable_data() + 5 * stride);
  values[0] = exchanged;
  const std::vector<WiringFault> faults = check_caches(ran->program, ran->taps);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].tap, "layers.0.self_attn.v_cache");
  EXPECT_EQ(faults[0].ranks, std::vector<int>{0});
}

// gpt2's keys go into the cache as they are; a window hands out fewer rows, not more.
TEST(Wiring, CacheWithAnotherNumberOfRows) {
  for (const auto& [model, attention] : std::vector<std::pair<std::string, std::string>>{
           {"tiny-gpt2", "h.1.attn"}, {"tiny-mistral", "layers.2.self_attn"}}) {
    const auto ran = run_of(batch(model, 2));
    const std::size_t last = ran->steps.size() - 1;
    std::vector<HostTensor>& keys = parts(*ran, last, attention + ".k_cache");
    const HostTensor old = keys[1];
    const std::int64_t rows = old.rows() - 1;
    HostTensor fewer(old.dtype(), {rows, old.cols()});
    std::copy_n(old.data(), fewer.bytes(), fewer.mutable_data());
    keys[1] = fewer;
    const std::vector<WiringFault> faults = check_caches(ran->program, ran->taps);
    ASSERT_EQ(faults.size(), 1u) << model;
    EXPECT_EQ(faults[0].ranks, std::vector<int>{1});
  }
}

// ---- weights ----

/// Rank 1's shard of a tensor with its last element changed.
class WrongShard final : public Interposer {
 public:
  explicit WrongShard(std::string tensor) : tensor_(std::move(tensor)) {}
  void prepare(RankContext& context) override {
    if (context.rank() != 1) return;
    const Tensor& shard = context.weight(tensor_);
    Device& device = context.device();
    const Tensor copy = device.allocate(context.stream(), shard.dtype, shard.rows, shard.cols);
    const HostTensor host = device.to_host(context.stream(), shard);
    HostTensor changed(host.dtype(), host.shape());
    std::copy_n(host.data(), host.bytes(), changed.mutable_data());
    changed.mutable_data()[host.bytes() - 1] ^= std::byte{0x40};
    device.upload(context.stream(), changed, copy);
    context.set_weight(tensor_, copy);
  }

 private:
  std::string tensor_;
};

TEST(Wiring, EveryShardIsInspected) {
  for (const std::string model : {"tiny-llama", "tiny-gpt2", "tiny-odd-vocab"}) {
    RunOf what = batch(model, 4, Phase::prefill);
    const Model loaded = load_model(model);
    WeightStore whole(loaded, DType::bf16);
    WeightInspector inspector(whole);
    what.inspect = [&](RankContext& context) { inspector.inspect(context); };
    const auto ran = run_of(what);
    std::int64_t tensors = 0;
    for (const Module& module : loaded.modules()) tensors += module.has_bias ? 2 : 1;
    EXPECT_EQ(inspector.shards(), 4 * tensors);
    EXPECT_TRUE(inspector.faults().empty()) << inspector.faults()[0].sentence;
  }
}

// The fault stands where the tensor goes into a value first: a partial, the module itself, or the bias after a sum.
TEST(Wiring, WrongShardIsPlacedWhereItIsUsed) {
  for (const auto& [model, tensor, tap] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"tiny-llama", "layers.1.self_attn.q_proj.weight", "layers.1.self_attn.q_proj"},
           {"tiny-llama", "layers.2.mlp.down_proj.weight", "layers.2.mlp.down_proj.partial"},
           {"tiny-llama", "embed_tokens.weight", "embed_tokens.partial"},
           {"tiny-llama", "norm.weight", "norm"},
           {"tiny-gpt2", "h.0.attn.c_attn.bias", "h.0.attn.c_attn"},
           {"tiny-gpt2", "h.1.mlp.c_proj.bias", "h.1.mlp.c_proj"},
           {"tiny-gpt2", "h.1.ln_2.bias", "h.1.ln_2"},
           {"tiny-gpt2", "wpe.weight", "wpe"}}) {
    WrongShard fault(tensor);
    RunOf what = batch(model, 3, Phase::prefill);
    const Model loaded = load_model(model);
    WeightStore whole(loaded, DType::bf16);
    WeightInspector inspector(whole);
    what.interposer = &fault;
    what.inspect = [&](RankContext& context) { inspector.inspect(context); };
    const auto ran = run_of(what);
    ASSERT_EQ(inspector.faults().size(), 1u) << tensor;
    const WiringFault found = inspector.faults()[0];
    EXPECT_EQ(found.tap, tap);
    EXPECT_EQ(found.ranks, std::vector<int>{1});
    EXPECT_EQ(found.order, program_order(ran->program, Phase::prefill, tap));
    EXPECT_THAT(found.sentence, HasSubstr(tensor));
  }
}

// ---- hashes ----

TEST(Wiring, MismatchesOfOneValueAreOneFault) {
  const auto ran = run_of(batch("tiny-llama", 3));
  const std::vector<WiringFault> faults = from_mismatches(
      ran->program, {{0, Phase::decode, 1, "layers.0", "layers.1.input_layernorm"},
                     {0, Phase::decode, 1, "layers.0", "layers.1.self_attn.resid"},
                     {2, Phase::decode, 1, "layers.0", "layers.1.self_attn.resid"},
                     {2, Phase::decode, 2, "norm", "lm_head.partial"}});
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(faults[0].order, program_order(ran->program, Phase::decode, "layers.0"));
  EXPECT_EQ(faults[1].tap, "norm");
  EXPECT_EQ(faults[1].step, 2);
  EXPECT_THAT(faults[0].sentence, HasSubstr("layers.1.input_layernorm read other bytes"));
}

TEST(Wiring, OrderCountsInstructions) {
  const auto ran = run_of(batch("tiny-llama", 2));
  const auto& instructions = ran->program.instructions.at(Phase::prefill);
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    for (const int output : instructions[i].outputs) {
      EXPECT_EQ(program_order(ran->program, Phase::prefill, ran->program.value(output).name),
                static_cast<int>(i));
    }
  }
  EXPECT_EQ(program_order(ran->program, Phase::prefill, "no such tap"),
            static_cast<int>(instructions.size()));
}

}  // namespace
}  // namespace shardcheck::testing
