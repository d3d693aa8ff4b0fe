// SPDX-License-Identifier: Apache-2.0
// A real model: SmolLM2-135M-Instruct, 30 layers, 9 heads and 3 kv heads, Q4_1 weights. fixtures/fetch smollm2 brings it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/candidate.hpp"
#include "harness/golden.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/harness/ran_program.hpp"
#include "tests/model/temp_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

const std::string kModel = "smollm2";

TEST(SmolLm2, ReferenceMeetsItsGolden) {
  const Model model = load_model(kModel);
  const GoldenReport report = compare_golden(
      model, std::string(SHARDCHECK_SOURCE_DIR) + "/fixtures/goldens/smollm2.safetensors");
  EXPECT_TRUE(report.passed()) << golden_table(report);
  EXPECT_EQ(report.compared, 16);
  EXPECT_EQ(report.unknown, 0);
  EXPECT_EQ(report.limit, 1e-12);
  EXPECT_LE(report.rows[report.worst].rel, 1e-12);
}

VerifyReport verify_smollm2(const std::vector<int>& sizes, const std::vector<DType>& dtypes,
                            Phase phase, std::int64_t tokens) {
  VerifyOptions options;
  for (const int tp : sizes) options.meshes.push_back(Mesh{{{"tp", tp}}});
  options.dtypes = dtypes;
  options.phases = {phase};
  options.inputs.tokens = tokens;
  options.inputs.decode_steps = 3;
  return verify(load_model(kModel), load_plan("megatron"), options, builtin_parts());
}

// 9 heads on 9 ranks share 3 kv heads; the vocabulary of 49152 is cut in 9 uneven parts.
TEST(SmolLm2, PrefillPassesOnOneThreeAndNineRanks) {
  const VerifyReport report = verify_smollm2({1, 3, 9}, {DType::bf16, DType::f64}, Phase::prefill, 8);
  EXPECT_TRUE(report.passed()) << verify_table(report, false);
  ASSERT_EQ(report.cells.size(), 6u);
  for (const CellReport& cell : report.cells) {
    if (cell.dtype == DType::f64) {
      EXPECT_LE(cell.logits.rel_max, kG2Limit);
    }
  }
}

// 9 heads on 2, 4 and 8 ranks are cut unevenly: 5 + 4, 3 + 2 + 2 + 2, 2 + 1 + ...
TEST(SmolLm2, DecodePassesOnUnevenHeads) {
  const VerifyReport report = verify_smollm2({2, 4, 8}, {DType::f16, DType::f32}, Phase::decode, 6);
  EXPECT_TRUE(report.passed()) << verify_table(report, false);
}

// ffn 1536 on 5 ranks cuts groups of 32 of Q4_1; weights are dequantised when loaded, so that is exact here.
TEST(SmolLm2, CutsThroughQuantisationGroupsAreNoted) {
  const VerifyReport report = verify_smollm2({5}, {DType::f32}, Phase::prefill, 3);
  EXPECT_TRUE(report.passed()) << verify_table(report, false);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_THAT(report.notes[0],
              ::testing::AllOf(HasSubstr("tp=5"), HasSubstr("mlp.down_proj"),
                               HasSubstr("groups of 32"), HasSubstr("1, 2, 3, 4, 6, 8, 12, 16")));
}

// One activation of the first token is 2e4: two percent of one rank's share are found beside it all the same.
TEST(SmolLm2, OneRanksPartialScaledInTheLastLayer) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.after = [](RankContext& context, const Instruction& instruction, std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.29.mlp.down_proj.partial" || context.rank() != 2) return;
      outputs[0] = changed(context, outputs[0], [](std::vector<double>& values, auto) {
        for (double& value : values) value *= 1.02;
      });
    };
    return made;
  };
  Setting setting{kModel, 3, DType::bf16};
  setting.tokens = 6;
  expect_first(verified(setting, fault).cells.at(0),
               {"layers.29.mlp.down_proj.partial", {2}, Phase::prefill, Gate::g3});
}

TEST(SmolLm2, DumpPassesAsACandidate) {
  const TempFolder folder;
  VerifyOptions options;
  options.meshes = {Mesh{{{"tp", 4}}}};
  options.dtypes = {DType::bf16};
  options.phases = {Phase::decode};
  options.inputs.tokens = 5;
  options.inputs.decode_steps = 2;
  options.dump = folder.path();
  const VerifyParts parts = builtin_parts();
  const Model model = load_model(kModel);
  EXPECT_TRUE(verify(model, load_plan("megatron"), options, parts).passed());
  const Candidate candidate = read_candidate(model, parts.ops, folder.path());
  const CandidateReport report = compare_candidate(model, candidate, parts);
  EXPECT_TRUE(report.passed()) << candidate_table(report);
}

// What correct runs of this model were seen to stay within, rings of 8 that round every hop included; the limits of A, B
// and C are 8 or 4, 0.7 and 1.5.
TEST(SmolLm2, CorrectRunsStayFarFromTheLimits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    RunOf what;
    what.model = kModel;
    what.mesh = Mesh{{{"tp", 8}}};
    what.settings = {dtype, dtype, {}};
    what.lengths = {8};
    const auto ran = run_of(what);
    JudgeOptions judge;
    judge.arithmetic = [&](Primitive primitive, DType storage) {
      return ran->device->arithmetic(primitive, storage);
    };
    const JudgeCell cell{&ran->program, &ran->taps};
    const std::vector<TapScore> scores = judge_local(ran->model, {&cell, 1}, judge).front();
    double a = 0.0, b = 0.0, c = 0.0;
    for (const TapScore& score : scores) {
      EXPECT_TRUE(score.passed()) << score.tap;
      a = std::max(a, score.a);
      b = std::max(b, score.b);
      c = std::max(c, score.c);
    }
    EXPECT_LE(a, 2.4) << name(dtype);
    EXPECT_LE(b, 0.53) << name(dtype);
    EXPECT_LE(c, 0.63) << name(dtype);
  }
}

}  // namespace
}  // namespace shardcheck::testing
