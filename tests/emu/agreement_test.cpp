// SPDX-License-Identifier: Apache-2.0
// The GPU code on emu and the CPU device are two implementations of one program: the same taps, placements, ledgers and
// verdicts, and each value within its own budget. Values needn't be the same bits: sums may be taken in another order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "harness/judge.hpp"
#include "kernels/emu/runtime.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

/// A model under a plan, on meshes of these sizes.
struct Case {
  std::string name, model, plan;
  std::vector<int> sizes;
};

void PrintTo(const Case& at, std::ostream* out) { *out << at.name; }

std::vector<Case> cases() {
  // 3 and 4 ranks: heads and vocabularies that don't divide; the models' head counts decide which.
  return {{"llama", "tiny-llama", "megatron", {1, 2, 3}},
          {"gpt2", "tiny-gpt2", "megatron", {1, 2, 4}},
          {"qwen2", "tiny-qwen2", "megatron", {1, 2, 3}},
          {"llama_replicated", "tiny-llama", "replicated", {2}},
          {"gpt2_replicated", "tiny-gpt2", "replicated", {3}},
          {"qwen2_replicated", "tiny-qwen2", "replicated", {4}},
          {"llama_sequence", "tiny-llama", kSequenceParallel, {2, 4}},
          {"qwen2_sequence", "tiny-qwen2", kSequenceParallel, {3}}};
}

class Agreement : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override { emu::Runtime::instance().set_seed(0); }
};

INSTANTIATE_TEST_SUITE_P(Models, Agreement, ::testing::ValuesIn(cases()),
                         [](const auto& of) { return of.param.name; });

/// Several sequences in chunks, one of them a single token; then decode, in which one sequence ends before the other.
RunOf steps_of(const Case& at, int size, DType dtype, Phase phase) {
  RunOf run;
  run.model = at.model;
  run.plan = at.plan;
  run.mesh = Mesh{{{"tp", size}}};
  run.settings = {dtype, dtype, {}};
  run.phase = phase;
  run.lengths = phase == Phase::prefill ? std::vector<std::int64_t>{6, 1, 4}
                                        : std::vector<std::int64_t>{5, 3};
  run.chunk = phase == Phase::prefill ? 4 : 0;
  run.decode_steps = 2;
  return run;
}

void expect_same_taps(const TapRun& cpu, const TapRun& emu) {
  ASSERT_EQ(cpu.steps.size(), emu.steps.size());
  for (std::size_t s = 0; s < cpu.steps.size(); ++s) {
    const std::vector<TapValue>&a = cpu.steps[s].values, &b = emu.steps[s].values;
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].name, b[i].name);
      EXPECT_EQ(a[i].layout, b[i].layout) << a[i].name;
      ASSERT_EQ(a[i].ranks.size(), b[i].ranks.size());
      for (std::size_t rank = 0; rank < a[i].ranks.size(); ++rank) {
        EXPECT_FALSE(b[i].ranks[rank].shape().empty()) << a[i].name << " of rank " << rank;
        EXPECT_EQ(a[i].ranks[rank].shape(), b[i].ranks[rank].shape())
            << a[i].name << " of rank " << rank;
        EXPECT_EQ(a[i].ranks[rank].dtype(), b[i].ranks[rank].dtype())
            << a[i].name << " of rank " << rank;
      }
    }
  }
}

std::vector<TapScore> scores_of(const RanProgram& ran) {
  const JudgeCell cell{&ran.program, &ran.taps};
  JudgeOptions options;
  options.arithmetic = [&](Primitive primitive, DType storage) {
    return ran.device->arithmetic(primitive, storage);
  };
  options.threads = 1;
  return judge_local(ran.model, {&cell, 1}, options).at(0);
}

/// Both are judged at the same places, and right at each.
void expect_same_judgement(const std::vector<TapScore>& cpu, const std::vector<TapScore>& emu) {
  ASSERT_EQ(cpu.size(), emu.size());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    EXPECT_EQ(cpu[i].tap, emu[i].tap);
    EXPECT_EQ(cpu[i].rank, emu[i].rank);
    EXPECT_EQ(cpu[i].compared, emu[i].compared) << cpu[i].tap;
    EXPECT_TRUE(cpu[i].passed()) << cpu[i].tap << " of rank " << cpu[i].rank << " on cpu: A "
                                 << cpu[i].a;
    EXPECT_TRUE(emu[i].passed()) << emu[i].tap << " of rank " << emu[i].rank << " on emu: A "
                                 << emu[i].a << " B " << emu[i].b << " " << emu[i].problem;
  }
}

TEST_P(Agreement, OfTapsLedgersAndEachValue) {
  const Case& at = GetParam();
  std::uint64_t seed = 0;
  for (const int size : at.sizes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const ::testing::ScopedTrace trace(
            __FILE__, __LINE__, fmt::format("tp={} {} {}", size, name(dtype), name(phase)));
        // A seed changes when tasks and threads run, never what comes out.
        emu::Runtime::instance().set_seed(seed++);
        RunOf what = steps_of(at, size, dtype, phase);
        const auto cpu = run_of(what);
        what.device = "emu";
        const auto emu = run_of(what);
        expect_same_taps(cpu->taps, emu->taps);
        EXPECT_EQ(cpu->result.ledgers, emu->result.ledgers);
        EXPECT_EQ(emu->meta, emu->result.ledgers);
        EXPECT_EQ(cpu->result.wiring_checks, emu->result.wiring_checks);
        EXPECT_TRUE(emu->result.wiring.empty());
        expect_same_judgement(scores_of(*cpu), scores_of(*emu));
      }
    }
  }
}

VerifyReport report_of(const Case& at, const std::string& device, bool fuse = false) {
  VerifyOptions options;
  for (const int size : at.sizes) options.meshes.push_back(Mesh{{{"tp", size}}});
  options.dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16};
  options.phases = {Phase::prefill, Phase::decode};
  options.inputs.lengths = {5, 2};
  options.inputs.decode_steps = 2;
  options.device = device;
  options.fuse = fuse;
  return verify(load_model(at.model), plan_of({.plan = at.plan}), options, builtin_parts());
}

TEST_P(Agreement, OfVerdicts) {
  emu::Runtime::instance().set_seed(17);
  const VerifyReport cpu = report_of(GetParam(), "cpu"), emu = report_of(GetParam(), "emu");
  ASSERT_EQ(cpu.cells.size(), emu.cells.size());
  for (std::size_t i = 0; i < cpu.cells.size(); ++i) {
    const CellReport &a = cpu.cells[i], &b = emu.cells[i];
    const ::testing::ScopedTrace trace(
        __FILE__, __LINE__, fmt::format("{} {} {}", to_string(a.mesh), name(a.dtype), name(a.phase)));
    EXPECT_EQ(a.mesh, b.mesh);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.phase, b.phase);
    EXPECT_EQ(a.verdict, Verdict::passed);
    EXPECT_EQ(b.verdict, Verdict::passed) << describe(b);
    EXPECT_EQ(a.mistrust, b.mistrust);
    EXPECT_EQ(a.collectives, b.collectives);
    EXPECT_EQ(a.payload_bytes, b.payload_bytes);
    for (const Gate gate : kGates) {
      EXPECT_EQ(a.gates.at(gate).ran, b.gates.at(gate).ran) << name(gate);
      EXPECT_EQ(a.gates.at(gate).passed, b.gates.at(gate).passed) << name(gate);
    }
  }
}

/// Fused kernels give the bits of the two ops that they stand for, so the reports are the same to the last digit.
TEST_P(Agreement, OfTheFusedProgramWithTheOther) {
  VerifyReport plain = report_of(GetParam(), "emu"), fused = report_of(GetParam(), "emu", true);
  ASSERT_EQ(fused.notes.size(), plain.notes.size() + 1);
  plain.notes.clear();
  fused.notes.clear();
  EXPECT_EQ(verify_json(fused), verify_json(plain));
}

}  // namespace
}  // namespace shardcheck::testing
