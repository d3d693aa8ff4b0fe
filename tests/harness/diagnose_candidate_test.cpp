// SPDX-License-Identifier: Apache-2.0
// Causes of what is wrong in tensors from outside, with and without the partial sums that led to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/harness/candidate_folder.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

const std::string kTap = "prefill/layers.1.mlp.down_proj";

void erase_partials(const CandidateFolder& folder, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    folder.change_file(rank, [](CandidateFolder::Tensors& all) {
      std::erase_if(all, [](const auto& item) { return item.first.ends_with(".partial"); });
    });
  }
}

void expect_cause(const CandidateReport& report, const std::string& tap, const std::string& cause) {
  ASSERT_TRUE(report.first.has_value());
  EXPECT_EQ(report.first->tap, tap);
  EXPECT_EQ(report.first->cause_name, cause) << report.first->cause;
  ASSERT_TRUE(report.first->propagated.has_value());
  EXPECT_GT(report.first->propagated->error, report.first->propagated->limit);
  EXPECT_THAT(candidate_table(report), HasSubstr("cause            " + cause + ": "));
}

TEST(DiagnoseCandidate, OneRanksPartial) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      for (const bool shown : {true, false}) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                           std::to_string(tp) + " " + std::string(name(dtype)));
        const CandidateFolder folder(run_in(dtype, tp));
        for (int rank = 0; rank < tp; ++rank) {
          folder.change_file(
              rank, [](CandidateFolder::Tensors& all) { all[kTap] = all.at(kTap + ".partial"); });
        }
        if (!shown) erase_partials(folder, tp);
        expect_cause(folder.compare(), "layers.1.mlp.down_proj", "one_ranks_partial");
      }
    }
  }
}

TEST(DiagnoseCandidate, SummedOnceTooOften) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      for (const bool shown : {true, false}) {
        const CandidateFolder folder(run_in(dtype, tp));
        for (int rank = 0; rank < tp; ++rank) {
          folder.change_tensor(rank, kTap, [tp](std::vector<double>& values) {
            for (double& v : values) v *= tp;
          });
        }
        if (!shown) erase_partials(folder, tp);
        expect_cause(folder.compare(), "layers.1.mlp.down_proj", "factor_tp");
      }
    }
  }
}

TEST(DiagnoseCandidate, ExchangedFiles) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      const CandidateFolder folder(run_in(dtype, tp));
      erase_partials(folder, tp);
      const CandidateFolder::Tensors first = folder.tensors(0), second = folder.tensors(1);
      folder.write(0, second);
      folder.write(1, first);
      expect_cause(folder.compare(), "layers.0.self_attn.q_proj", "rows_of_wrong_rank");
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
