// SPDX-License-Identifier: Apache-2.0
// The sharded program computes the model, whatever the cut: every value at P ranks equals that of one rank, and one rank
// equals the reference.
#include "sharded/runner.hpp"

#include <gtest/gtest.h>

#include "model/error.hpp"
#include "reference/transformer.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

Whole reference_logits(const Model& model, const std::vector<std::int64_t>& ids) {
  reference::Transformer<double> transformer(model);
  const reference::Matrix<double> logits = transformer.forward(ids);
  return {logits.rows(), logits.cols(), {logits.values().begin(), logits.values().end()}};
}

struct Case {
  const char* name;
  SmallModel model;
  std::vector<int> ranks;
};
void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

class EveryModel : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Models, EveryModel,
    ::testing::Values(Case{"nine_heads_three_kv", {}, {1, 2, 3, 4, 5, 6, 7, 8, 9}},
                      Case{"sixteen_heads",
                           {"llama", 16, 4, 4, 24, 40, 101, 1},
                           {2, 3, 5, 7, 10, 11, 12, 13, 14, 15, 16}},
                      Case{"one_kv_head", {"llama", 5, 1, 6, 26, 31, 67, 2}, {2, 3, 5}},
                      Case{"biases", {"llama", 6, 2, 4, 20, 27, 50, 2, true, true}, {2, 4, 5}},
                      Case{"qkv_biases", {"qwen2", 6, 3, 4, 20, 27, 50, 2, false, true}, {2, 4, 5}},
                      Case{"window", {"mistral", 4, 2, 4, 20, 27, 50, 2, false, false, 3}, {2, 3, 4}},
                      Case{"ffn_1536", {"llama", 5, 5, 4, 16, 1536, 40, 1}, {5}},
                      Case{"gpt2", {"gpt2", 5, 5, 8, 40, 53, 83, 2, false, true}, {2, 3, 4, 5}},
                      Case{"gpt2_untied", {"gpt2", 6, 6, 4, 24, 31, 83, 1, false, false}, {2, 5, 6}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryModel, IsTheReferenceOnOneRank) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const Step step = prefill({11}, model.config().vocab_size);
  const Ran one = run(model, megatron(), line(1), {step}, ops);
  EXPECT_TRUE(one.program.findings.empty());
  EXPECT_LE(difference(reference_logits(model, step.ids), one.logits()),
            summation_limit(model.config()));
}

TEST_P(EveryModel, HasTheSameValuesOnEveryNumberOfRanks) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const Step step = prefill({5, 1, 17}, model.config().vocab_size);
  const Ran one = run(model, megatron(), line(1), {step}, ops);
  for (const int ranks : GetParam().ranks) {
    const Ran many = run(model, megatron(), line(ranks), {step}, ops);
    EXPECT_TRUE(many.program.findings.empty());
    EXPECT_EQ(many.result.ledgers.size(), static_cast<std::size_t>(ranks));
    expect_same_values(one, many, summation_limit(model.config()));
  }
}

TEST_P(EveryModel, RunsSequencesTogetherAsAlone) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const std::vector<std::int64_t> lengths{5, 1, 17};
  const Step step = prefill(lengths, model.config().vocab_size);
  const Ran together = run(model, megatron(), line(GetParam().ranks.back()), {step}, ops);
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    const std::vector<std::int64_t> ids(step.ids.begin() + begin, step.ids.begin() + begin + length);
    EXPECT_LE(difference(reference_logits(model, ids), rows_of(together.logits(), begin, length)),
              summation_limit(model.config()));
    begin += length;
  }
}

// Two sequences: chunks of a prompt, a step without tokens for one of them, then single tokens.
TEST_P(EveryModel, DecodesWhatAWholePromptGives) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const std::int64_t vocab = model.config().vocab_size;
  const std::vector<std::int64_t> a = varied_ids(12, vocab), b = varied_ids(9, vocab, 1);
  const auto take = [](Phase phase, int index, std::vector<StepSequence> sequences, auto&& a_ids,
                       auto&& b_ids) {
    Step step{phase, index, std::move(sequences), {}};
    for (const StepSequence& part : step.sequences) {
      const std::vector<std::int64_t>& from = part.sequence == 0 ? a_ids : b_ids;
      step.ids.insert(step.ids.end(), from.begin() + part.first,
                      from.begin() + part.first + part.count);
    }
    return step;
  };
  const std::vector<Step> steps{take(Phase::prefill, 0, {{0, 0, 4}, {1, 0, 1}}, a, b),
                                take(Phase::prefill, 1, {{0, 4, 6}, {1, 1, 0}}, a, b),
                                take(Phase::prefill, 2, {{1, 1, 6}}, a, b),
                                take(Phase::decode, 0, {{0, 10, 1}, {1, 7, 1}}, a, b),
                                take(Phase::decode, 1, {{0, 11, 0}, {1, 8, 1}}, a, b),
                                take(Phase::decode, 2, {{0, 11, 1}}, a, b)};
  const Whole whole_a = reference_logits(model, a), whole_b = reference_logits(model, b);
  const double limit = summation_limit(model.config());
  for (const int ranks : {1, GetParam().ranks.back()}) {
    const Ran ran = run(model, megatron(), line(ranks), steps, ops);
    for (const Step& step : steps) {
      const Whole logits = ran.logits(step.phase, step.index);
      std::int64_t row = 0;
      for (const StepSequence& part : step.sequences) {
        const Whole& whole = part.sequence == 0 ? whole_a : whole_b;
        EXPECT_LE(difference(rows_of(whole, part.first, part.count), rows_of(logits, row, part.count)), limit)
            << name(step.phase) << " " << step.index << ", sequence " << part.sequence << ", "
            << ranks << " ranks";
        row += part.count;
      }
      EXPECT_EQ(row, logits.rows);
    }
  }
}

TEST(Runner, RunsOneTokenOnFourRanks) {
  const Registry ops = builtin_ops();
  for (const char* type : {"llama", "gpt2"}) {
    const Model model = make_model({type, 5, 5, 8, 40, 53, 83, 2, true});
    const Step step = prefill({1}, model.config().vocab_size);
    const Ran ran = run(model, megatron(), line(4), {step}, ops);
    EXPECT_LE(difference(reference_logits(model, step.ids), ran.logits()),
              summation_limit(model.config()));
  }
}

TEST(Runner, RunsAStepWithoutAnyToken) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Ran ran = run(model, megatron(), line(3), {prefill({0, 0}, 257)}, ops);
  EXPECT_EQ(ran.logits().rows, 0);
  EXPECT_EQ(ran.logits().cols, 257);
}

/// Changes one number of one rank's shard of a weight, by the last bit of an f32.
class WeightNudge final : public Interposer {
 public:
  WeightNudge(int rank, std::string tensor) : rank_(rank), tensor_(std::move(tensor)) {}
  void prepare(RankContext& context) override {
    if (context.rank() != rank_) return;
    const Tensor& shard = context.weight(tensor_);
    std::vector<double> values = context.device().to_host(context.stream(), shard).to_f64();
    values[values.size() / 2] *= 1.0 + 0x1p-23;
    const Tensor changed = context.device().allocate(context.stream(), shard.dtype, shard.rows, shard.cols);
    context.device().upload(context.stream(),
                            round_to(shard.dtype, {shard.rows, shard.cols}, values), changed);
    context.set_weight(tensor_, changed);
  }

 private:
  int rank_;
  std::string tensor_;
};

TEST(Runner, TheLimitCatchesOneWeightOffByTheLastBitOfF32) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({6}, 257);
  const Whole truth = reference_logits(model, step.ids);
  for (const std::string module :
       {"layers.0.self_attn.v_proj", "layers.1.self_attn.o_proj", "layers.0.mlp.gate_proj",
        "layers.1.mlp.down_proj", "norm", "lm_head"}) {
    for (const int rank : {0, 3}) {
      WeightNudge nudge(rank, module + ".weight");
      RunSetup setup;
      setup.interposer = &nudge;
      const Ran ran = run(model, megatron(), line(4), {step}, ops, setup);
      EXPECT_GT(difference(truth, ran.logits()), summation_limit(model.config()))
          << module << " on rank " << rank;
    }
  }
}

TEST(Runner, RunsTheReplicatedPlanBitwiseAlikeOnEveryRank) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({7}, 257);
  const Ran one = run(model, load_plan("replicated"), line(1), {step}, ops);
  const Ran three = run(model, load_plan("replicated"), line(3), {step}, ops);
  for (const auto& [key, parts] : three.taps->parts()) {
    for (const HostTensor& replica : parts.ranks)
      EXPECT_TRUE(replica.bitwise_equal(one.taps->parts().at(key).ranks[0])) << std::get<2>(key);
  }
  for (const LedgerRecord& record : three.result.ledgers[0])
    EXPECT_EQ(record.kind, LedgerRecord::Kind::op);
}

TEST(Runner, StaysWithinTheRoundingOfEachPrecision) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({9}, 257);
  const Whole truth = reference_logits(model, step.ids);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    RunSetup setup;
    setup.settings = {dtype, dtype, {}};
    // Sums are kept in f32; every value is rounded to storage once, and once more for the wire.
    const double limit = summation_limit(model.config()) * 0x1p53 * unit_roundoff(dtype);
    const Ran one = run(model, megatron(), line(1), {step}, ops, setup);
    const double alone = difference(truth, one.logits());
    EXPECT_GT(alone, 0.0);
    EXPECT_LE(alone, limit) << name(dtype);
    for (const ReduceOrder order : {ReduceOrder::ring, ReduceOrder::tree, ReduceOrder::one_shot,
                                    ReduceOrder::two_shot, ReduceOrder::fixed_tree}) {
      setup.settings.reduction.order = order;
      const Ran many = run(model, megatron(), line(4), {step}, ops, setup);
      EXPECT_LE(difference(truth, many.logits()), limit) << name(dtype) << " " << name(order);
    }
  }
}

/// Throws on one rank in the middle of a step.
class Thrower final : public Interposer {
 public:
  void after(RankContext& context, const Instruction& instruction, std::vector<Tensor>&) override {
    if (context.rank() == 2 && instruction.site == "layers.1.mlp.act")
      throw InputError("the disk is full");
  }
};

TEST(Runner, EndsWithTheMessageOfTheRankThatThrew) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  Thrower thrower;
  RunSetup setup;
  setup.interposer = &thrower;
  try {
    run(model, megatron(), line(4), {prefill({3}, 257)}, ops, setup);
    FAIL() << "rank 2 threw";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "rank 2: the disk is full");
  }
}

/// Overwrites a value after it was tapped.
class Overwriter final : public Interposer {
 public:
  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    if (context.rank() == 1 && instruction.site == "layers.0.self_attn.o_proj")
      context.device().poison(context.stream(), outputs[0].row_range(0, 1));
  }
};

TEST(Runner, NamesValuesThatChangedBetweenProducerAndConsumer) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Program program = program_of(model, megatron(), line(2), ops);
  const auto device = builtin_devices().make("cpu");
  const auto world = builtin_worlds().make("threads", line(2));
  WeightStore weights(model, DType::f32);
  Overwriter overwriter;
  RunOptions options;
  options.interposer = &overwriter;
  options.check_wiring = true;
  Device* const devices[] = {device.get()};
  const std::vector<Step> steps{prefill({3}, 257)};
  const RunResult result = run_program(program, *world, devices, weights, {}, steps, options);
  ASSERT_EQ(result.wiring.size(), 1u);
  EXPECT_EQ(result.wiring[0].rank, 1);
  EXPECT_EQ(result.wiring[0].value, "layers.0.self_attn.o_proj");
  EXPECT_EQ(result.wiring[0].consumer, "layers.0.self_attn.resid");
  EXPECT_GT(result.wiring_checks, 40);
}

TEST(Runner, CountsTheTokensOfEverySequence) {
  const std::vector<Step> steps{{Phase::prefill, 0, {{0, 0, 4}, {2, 0, 7}}, {}},
                                {Phase::decode, 0, {{0, 4, 1}}, {}}};
  EXPECT_EQ(sequence_capacity(steps), (std::vector<std::int64_t>{5, 0, 7}));
}

}  // namespace
}  // namespace shardcheck
