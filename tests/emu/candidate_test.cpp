// SPDX-License-Identifier: Apache-2.0
// A run on another device than the cpu, written to files and compared as anybody's candidate.
#include "harness/candidate.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "harness/verify.hpp"
#include "model/model.hpp"
#include "sharded/plan.hpp"

namespace shardcheck::testing {
namespace {

class CandidateOfEmu : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Formats, CandidateOfEmu,
                         ::testing::Values(DType::f64, DType::f32, DType::bf16, DType::f16),
                         [](const auto& of) { return std::string(name(of.param)); });

/// In f64 the unsharded run on the cpu sums as the reference does and shows next to no error; another order of the same
/// sums is no fault.
TEST_P(CandidateOfEmu, PassesInBothPhases) {
  const Model model = load_model("tiny-llama");
  const VerifyParts parts = builtin_parts();
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                         ("emu_candidate_" + std::string(name(GetParam())) +
                                          std::string(name(phase)));
    VerifyOptions options;
    options.meshes = {Mesh{{{"tp", 2}}}};
    options.dtypes = {GetParam()};
    options.phases = {phase};
    options.device = "emu";
    options.dump = folder;
    const VerifyReport report = verify(model, load_plan("megatron"), options, parts);
    ASSERT_TRUE(report.passed());
    const Candidate candidate = read_candidate(model, parts.ops, folder);
    const CandidateReport compared = compare_candidate(model, candidate, parts);
    EXPECT_TRUE(compared.passed()) << candidate_table(compared);
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace shardcheck::testing
