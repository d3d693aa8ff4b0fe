// SPDX-License-Identifier: Apache-2.0
// A fused program is judged as the program that it stands for: the same report to the last digit, and a fused op that is
// wrong is found at the value it spoils, on the rank that does it.
#include "sharded/fusion.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness/trace.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

VerifyReport report_of(const std::string& model, const std::string& plan, std::vector<DType> dtypes,
                       bool fuse) {
  VerifyOptions options;
  for (const int tp : {1, 2, 4}) options.meshes.push_back(Mesh{{{"tp", tp}}});
  options.dtypes = std::move(dtypes);
  options.phases = {Phase::prefill, Phase::decode};
  options.inputs.lengths = {7, 2};
  options.inputs.decode_steps = 2;
  options.inputs.chunk = 4;
  options.fuse = fuse;
  const Plan parsed = plan.find('{') == std::string::npos ? load_plan(plan)
                                                          : parse_plan(plan, "plan.json");
  return verify(load_model(model), parsed, options, builtin_parts());
}

TEST(FusedVerify, ReportsTheSameToTheLastDigit) {
  struct Case {
    std::string model, plan, note;
  };
  const std::string sentence = " residual adds are one op with the RMSNorm that reads the sum";
  for (const Case& at :
       {Case{"tiny-llama", "megatron", "6 of 6"}, Case{"tiny-qwen2", "replicated", "4 of 4"},
        Case{"tiny-mistral", "megatron", "6 of 6"}, Case{"tiny-llama-bias", "megatron", "4 of 4"},
        Case{"tiny-llama", kSequenceParallel, "6 of 6"}, Case{"tiny-gpt2", "megatron", "0 of 5"}}) {
    const ::testing::ScopedTrace trace(__FILE__, __LINE__, at.model + " " + at.note);
    const std::vector<DType> dtypes{DType::f32, DType::bf16, DType::f16};
    VerifyReport plain = report_of(at.model, at.plan, dtypes, false);
    VerifyReport fused = report_of(at.model, at.plan, dtypes, true);
    EXPECT_TRUE(fused.passed());
    ASSERT_FALSE(fused.notes.empty());
    EXPECT_EQ(fused.notes.back(), at.note + sentence);
    plain.notes.clear();
    fused.notes.clear();
    EXPECT_EQ(verify_json(fused), verify_json(plain));
  }
}

/// Verifies one cell of the fused program, with a fault.
CellReport fused_cell(const Setting& setting, const MakeFault& fault) {
  const Model model = load_model(setting.model);
  VerifyOptions options;
  options.meshes = {Mesh{{{"tp", setting.tp}}}};
  options.dtypes = {setting.dtype};
  options.phases = {setting.phase};
  options.inputs.tokens = setting.tokens;
  options.inputs.decode_steps = setting.decode_steps;
  options.fuse = true;
  if (fault) {
    options.fault = [&](const Program& program, const RunSettings&, Phase) {
      return std::make_unique<PlantedFault>(fault(program));
    };
  }
  return verify(model, plan_of(setting), options, builtin_parts()).cells.at(0);
}

/// A fused op at this site computes something else on some ranks.
template <typename Compute>
Fault instead(std::string site, std::vector<int> ranks, Compute compute) {
  Fault fault;
  fault.replace = [site = std::move(site), ranks = std::move(ranks), compute](
                      RankContext& context, const Instruction& instruction,
                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
    const bool mine = std::find(ranks.begin(), ranks.end(), context.rank()) != ranks.end();
    if (!mine || instruction.site != site || instruction.op == nullptr ||
        instruction.op->name() != kAddRmsNorm) {
      return false;
    }
    for (const int output : instruction.outputs) outputs.push_back(context.allocate(output));
    compute(context, instruction, inputs, outputs);
    return true;
  };
  return fault;
}

Tensor in_f32(RankContext& context, const Tensor& tensor) {
  const Tensor wide = context.device().allocate(context.stream(), DType::f32, tensor.rows, tensor.cols);
  context.device().cast(context.stream(), tensor, wide);
  return wide;
}

/// The sum is stored as it should be, but what is normed is the sum before its rounding.
void norm_the_unrounded_sum(RankContext& context, const Instruction& instruction,
                            const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  Device& device = context.device();
  Stream& stream = context.stream();
  const Tensor &sum = outputs[0], &out = outputs[1];
  device.add(stream, inputs[0], inputs[1], sum);
  const Tensor whole = device.allocate(stream, DType::f32, sum.rows, sum.cols);
  device.add(stream, in_f32(context, inputs[0]), in_f32(context, inputs[1]), whole);
  const Tensor normed = device.allocate(stream, DType::f32, sum.rows, sum.cols);
  device.rms_norm(stream, whole, in_f32(context, context.weight(instruction.module + ".weight")),
                  instruction.attributes.at("eps"), normed);
  device.cast(stream, normed, out);
}

TEST(FusedFault, NormOfTheUnroundedSum) {
  const std::string site = "layers.1.self_attn.resid", norm = "layers.1.post_attention_layernorm";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [tp, ranks] : std::vector<std::pair<int, std::vector<int>>>{
             {1, {0}}, {2, {0, 1}}, {4, {0, 1, 2, 3}}, {4, {2}}}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const Setting setting{.tp = tp, .dtype = dtype, .phase = phase};
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting));
        EXPECT_EQ(fused_cell(setting, nullptr).verdict, Verdict::passed);
        const std::vector<int>& on = ranks;
        const CellReport cell = fused_cell(
            setting, [&](const Program&) { return instead(site, on, norm_the_unrounded_sum); });
        expect_first(cell, {norm, ranks});
      }
    }
  }
}

/// b alone: what the attention block gives, without the residual stream.
void drop_the_residual(RankContext& context, const Instruction& instruction,
                       const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
  Device& device = context.device();
  device.copy(context.stream(), inputs[1], outputs[0]);
  device.rms_norm(context.stream(), outputs[0], context.weight(instruction.module + ".weight"),
                  instruction.attributes.at("eps"), outputs[1]);
}

TEST(FusedFault, OneRankDropsTheResidual) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [tp, rank] : std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {4, 0}, {4, 3}}) {
      for (const char* const plan : {"megatron", kSequenceParallel}) {
        const Setting setting{.tp = tp, .dtype = dtype, .plan = plan};
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, describe(setting));
        for (const std::string site : {"layers.0.self_attn.resid", "layers.2"}) {
          const std::vector<int> ranks{rank};
          const CellReport cell = fused_cell(
              setting, [&](const Program&) { return instead(site, ranks, drop_the_residual); });
          expect_first(cell, {site, ranks, {}, Gate::g3});
        }
      }
    }
  }
}

/// The norm's weight is another rank's idea of it: found where the norm's value is, not where the sum is.
TEST(FusedFault, AWrongNormWeightIsNotTheSumsFault) {
  const Setting setting{.tp = 2, .dtype = DType::f32};
  const std::string weight = "layers.1.post_attention_layernorm.weight";
  const CellReport cell = fused_cell(setting, [&](const Program&) {
    Fault fault;
    fault.prepare = [&](RankContext& context) {
      if (context.rank() != 1) return;
      context.set_weight(
          weight, changed(context, context.weight(weight),
                          [](std::vector<double>& values, std::size_t) { values[3] += 0.25; }));
    };
    return fault;
  });
  expect_first(cell, {"layers.1.post_attention_layernorm", {1}});
}

TEST(FusedTrace, MovesFewerBytesThroughMemory) {
  const VerifyParts parts = builtin_parts();
  ModelOptions shapes;
  shapes.shapes_only = true;
  const Model model = load_model("llama-3-8b", shapes);
  const Program plain = build_program(
      model, resolve(load_plan("megatron"), model, Mesh{{{"tp", 4}}}), parts.ops);
  const Program fused = fuse(plain, parts.ops);
  const TraceOptions options{{DType::bf16, DType::bf16, {}}, 2, 512};
  const auto moved = [&](const Program& program) {
    double bytes = 0.0;
    const sim::RunLoad load = trace(model, program, Phase::prefill, options, parts);
    for (const sim::Uses& use : load.ranks[0].ops)
      bytes += static_cast<double>(use.count) * load.ops[use.index].moved.value;
    return bytes;
  };
  // 32 layers of two adds; the sums [2 * 512, 4096] of 2 bytes that aren't read back.
  EXPECT_EQ(moved(plain) - moved(fused), 64.0 * 2 * 512 * 4096 * 2);
}

}  // namespace
}  // namespace shardcheck::testing
