// SPDX-License-Identifier: Apache-2.0
// Causes in programs that break a rule and run all the same, in programs whose ops are all right by their own inputs,
// and at the edge of what rounding hides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "harness/failure_text.hpp"
#include "harness/run.hpp"
#include "tests/harness/diagnosed_fault.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

CollectiveStep sum_over_tp() {
  CollectiveStep step;
  step.axes = {"tp"};
  return step;
}

/// One cell of megatron whose plan or program was changed.
CellReport forced(const Setting& setting, const std::function<void(ResolvedPlan&)>& edit_plan,
                  const std::function<void(Program&)>& edit_program = nullptr) {
  const Model model = load_model(setting.model);
  VerifyOptions options;
  options.meshes = {Mesh{{{"tp", setting.tp}}}};
  options.dtypes = {setting.dtype};
  options.phases = {setting.phase};
  options.inputs.tokens = 8;
  options.inputs.decode_steps = 2;
  options.force = true;
  options.edit_plan = edit_plan;
  options.edit_program = edit_program;
  return verify(model, plan_of(setting), options, builtin_parts()).cells.at(0);
}

void expect_first_cause(const CellReport& cell, const std::string& tap, const std::string& cause) {
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->tap, tap) << describe(cell);
  EXPECT_EQ(cell.first->cause_name, cause) << describe(cell);
}

// Eight equal numbers: their running sum is rounded at three, five, six and seven of them.
TEST(DiagnoseForced, SumOfWholeValues) {
  for (const int tp : {3, 5, 7, 8}) {
    for (const DType dtype : kAll) {
      const Setting setting{"tiny-odd-vocab", tp, dtype};
      for (const std::string tap : {"layers.0.input_layernorm", "layers.1.mlp.down_proj"}) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting) + " " + tap);
        const CellReport cell = forced(setting, [&](ResolvedPlan& plan) {
          for (auto& [phase, points] : plan.points) points[tap + ".out"].push_back(sum_over_tp());
        });
        expect_first_cause(cell, tap, "factor_tp");
      }
    }
  }
}

// olmo2's q_norm sums the squares of the heads that a rank should have; its q_proj has half a head more, or less.
TEST(DiagnoseForced, StatisticOfOtherFeatures) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kAll) {
      const Setting setting{"tiny-olmo2", tp, dtype};
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting));
      const CellReport cell = forced(setting, [](ResolvedPlan& plan) {
        auto& rows = plan.weights.find("layers.0.self_attn.q_proj")->second.rows;
        rows[0][0].end += 4;
        rows[1][0].begin += 4;
      });
      expect_first_cause(cell, "layers.0.self_attn.q_norm.stat.partial", "statistic_of_shard");
    }
  }
}

// On two axes: the sum along the other one adds up parts that are other features.
TEST(DiagnoseForced, SumAlongTheOtherAxis) {
  const Model model = load_model("tiny-llama");
  for (const int x : {2, 3}) {
    for (const DType dtype : kAll) {
      for (const std::string tap : {"embed_tokens", "layers.2.mlp.down_proj"}) {
        VerifyOptions options;
        options.meshes = {Mesh{{{"tpx", x}, {"tpy", 2}}}};
        options.dtypes = {dtype};
        options.phases = {Phase::prefill};
        options.inputs.tokens = 8;
        options.force = true;
        options.edit_plan = [&](ResolvedPlan& plan) {
          for (auto& [phase, points] : plan.points) points[tap + ".out"].at(0).axes = {"tpx"};
        };
        const CellReport cell = verify(model, load_plan("tp2d"), options, builtin_parts()).cells.at(0);
        expect_first_cause(cell, tap, "reduced_over_wrong_group");
      }
    }
  }
}

// What an op doesn't fill of its output is poison, whatever the memory held before.
TEST(DiagnoseForced, FreshMemoryIsPoisoned) {
  const Model model = load_model("tiny-gpt2");
  ResolvedPlan plan = resolve(load_plan("megatron"), model, Mesh{{{"tp", 2}}});
  for (auto& [phase, points] : plan.points) {
    CollectiveStep& step = points["h.0.mlp.c_proj.out"].at(0);
    step.kind = CollectiveStep::Kind::reduce_scatter;
    step.dim = PlanDim::features;
  }
  const VerifyParts parts = builtin_parts();
  const Program program = build_program(model, plan, parts.ops);
  ASSERT_TRUE(program.forced_shapes);
  const std::unique_ptr<World> world = parts.worlds.make("threads", program.mesh);
  const std::unique_ptr<Device> device = parts.devices.make("cpu");
  Device* const pointer = device.get();
  WeightStore weights(model, DType::f64);
  class Fresh final : public Interposer {
   public:
    void after(RankContext& context, const Instruction& instruction, std::vector<Tensor>&) override {
      const Tensor fresh = context.allocate(instruction.outputs[0]);
      const HostTensor host = context.device().to_host(context.stream(), fresh);
      for (std::int64_t i = 0; i < host.elements(); ++i) {
        if (is_float(host.dtype()) && !std::isnan(host.at(i))) ++written;
      }
    }
    std::atomic<std::int64_t> written = 0;
  } fresh;
  RunOptions options;
  options.interposer = &fresh;
  const Sequences sequences{{1, 2, 3, 4, 5}};
  const std::vector<Step> steps = prefill_steps(sequences, 0);
  run_program(program, *world, {&pointer, 1}, weights, {DType::f64, DType::f64, {}}, steps, options);
  EXPECT_EQ(fresh.written, 0);
}

// A program that isn't the model: every op does what it says, and values leave the reference where it says otherwise.
TEST(DiagnoseForced, BeginsWhereTheValuesLeaveTheReference) {
  for (const DType dtype : kAll) {
    const Setting setting{"tiny-llama", 2, dtype};
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting));
    const CellReport cell = forced(setting, nullptr, [](Program& program) {
      for (auto& [phase, instructions] : program.instructions) {
        for (Instruction& i : instructions) {
          if (i.site == "layers.1.self_attn.resid") i.inputs[0] = i.inputs[1];
        }
      }
    });
    EXPECT_EQ(cell.verdict, Verdict::failed);
    expect_first_cause(cell, "layers.1.self_attn.resid", "unexplained");
    ASSERT_TRUE(cell.first.has_value());
    EXPECT_EQ(cell.first->gate, dtype == DType::f64 ? Gate::g2 : Gate::g4);
    EXPECT_TRUE(cell.first->all_ranks);
    EXPECT_EQ(cell.first->row, -1);  // no element of this tap was looked at
    EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("every op is right by its own inputs"));
  }
}

// Shares that were cast before they were sent, in f64: the sum of just these numbers.
TEST(DiagnoseForced, SharesSentInAnotherFormat) {
  for (const DType coarse : {DType::f32, DType::bf16}) {
    for (const std::string tap : {"layers.0.self_attn.o_proj", "layers.1.mlp.down_proj"}) {
      expect_cause(
          {"tiny-llama", 4},
          changing({tap,
                    {0, 1, 2, 3},
                    {tap + ".partial"},
                    [=](std::vector<double>& values, std::size_t, const KeptValues& kept,
                        RankContext& context) {
                      std::fill(values.begin(), values.end(), 0.0);
                      for (int rank = 0; rank < 4; ++rank) {
                        const auto share = kept.get(tap + ".partial", context.step(), rank);
                        const auto sent = round_to(coarse,
                                                   {1, static_cast<std::int64_t>(share.size())}, share)
                                              .to_f64();
                        for (std::size_t i = 0; i < values.size(); ++i) values[i] += sent.at(i);
                      }
                    }}),
          tap, "precision_too_low");
    }
  }
}

// One factor is fitted, and its product is rounded once more.
TEST(DiagnoseForced, ScaledTable) {
  for (const DType dtype : kAll) {
    for (const double factor : {0.7, 1.1, 1.9, 2.582, 5.4}) {
      expect_cause(
          {"tiny-llama", 2, dtype},
          changing({"embed_tokens.partial",
                    {1},
                    {},
                    [=](std::vector<double>& values, std::size_t, const KeptValues&, RankContext&) {
                      for (double& value : values) value *= factor;
                    }}),
          "embed_tokens.partial", "wrong_factor");
    }
  }
}

// Before the bias, all of a row is off by one factor: no rounding is.
TEST(DiagnoseForced, DeviationOfALayerNorm) {
  for (const DType dtype : kAll) {
    expect_cause(
        {"tiny-gpt2", 3, dtype},
        replacing("h.0.ln_1", {2},
                  [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
                    Instruction other = i;
                    other.attributes["eps"] = 0.0613;
                    return i.op->run(other, context, inputs)[0];
                  }),
        "h.0.ln_1", "wrong_divisor");
  }
}

// Prefill and two tokens after it: what is wrong in the first step comes from no step before.
TEST(DiagnoseForced, FirstStepIsNotStale) {
  for (const DType dtype : kAll) {
    Setting setting{"tiny-llama", 2, dtype, Phase::decode};
    setting.decode_steps = 2;
    const auto rolled = [](std::vector<double>& values, std::size_t cols, const KeptValues&,
                           RankContext& context) {
      if (context.step().phase == Phase::prefill)
        std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(cols), values.end());
    };
    for (const std::string tap : {"layers.0.self_attn.q_proj", "layers.1.mlp.act"})
      expect_cause(setting, changing({tap, {1}, {}, rolled}), tap, "permuted_rows");
  }
}

// A rank's copy may be wrong though the whole value, which is another rank's, is right: then its error says nothing.
TEST(DiagnoseForced, NoErrorWithinItsLimit) {
  FirstFailure first;
  first.propagated = Propagated{"norm", Phase::prefill, 0, {1}, 0.0, 1e-12};
  const Mesh mesh{{{"tp", 2}}};
  EXPECT_THAT(cause_lines(first, mesh), ::testing::HasSubstr("at norm (rank 1), prefill step 0\n"));
  first.propagated->error = 0.5;
  EXPECT_THAT(cause_lines(first, mesh), ::testing::HasSubstr("step 0: off by 0.5, limit 1e-12\n"));
}

}  // namespace
}  // namespace shardcheck::testing
