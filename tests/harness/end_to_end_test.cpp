// SPDX-License-Identifier: Apache-2.0
#include "harness/end_to_end.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

using reference::Matrix;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Logits of one sequence of three tokens over four words, written by hand.
const std::vector<double> kTruth{1.0, 3.0, -2.0, 0.5, 2.0, 0.25, 1.75, -4.0, -1.0, 0.0, 0.5, 4.0};

ReferenceLogits truth() { return {Matrix<double>(3, 4, kTruth)}; }

/// A run of `ranks` whose logits are these: two tokens in the prefill, one in decode.
TapRun run_with(const std::vector<std::vector<double>>& by_rank, DType dtype = DType::f64) {
  TapRun run;
  const int ranks = static_cast<int>(by_rank.size());
  run.mesh = Mesh{{{"tp", ranks}}};
  run.storage = run.wire = dtype;
  run.steps.push_back({{Phase::prefill, 0, {{0, 0, 2}}, {5, 6}}, {}, {}});
  run.steps.push_back({{Phase::decode, 0, {{0, 2, 1}}, {7}}, {}, {}});
  for (std::size_t s = 0; s < 2; ++s) {
    TapValue value{"lm_head", Layout::replicated(4, run.mesh), {}};
    for (const std::vector<double>& logits : by_rank) {
      const std::size_t begin = s == 0 ? 0 : 8, rows = s == 0 ? 2 : 1;
      value.ranks.push_back(round_to(dtype, {static_cast<std::int64_t>(rows), 4},
                                     std::span(logits).subspan(begin, rows * 4)));
    }
    for (std::size_t r = 1; r < value.ranks.size(); ++r) {
      if (value.ranks[r].bitwise_equal(value.ranks[0])) value.ranks[r] = value.ranks[0];
    }
    run.steps[s].add(std::move(value));
  }
  return run;
}

EndToEnd measured(const TapRun& run, const EndToEnd* yardstick = nullptr) {
  return end_to_end(run, "lm_head", truth(), yardstick);
}

std::vector<double> changed(std::size_t at, double value) {
  std::vector<double> logits = kTruth;
  logits[at] = value;
  return logits;
}

TEST(EndToEnd, EqualLogitsHaveNoError) {
  const EndToEnd e = measured(run_with({kTruth, kTruth}));
  EXPECT_EQ(e.rel_fro, 0.0);
  EXPECT_EQ(e.rel_max, 0.0);
  EXPECT_EQ(e.top1_agree, 1.0);
  EXPECT_EQ(e.flips, 0);
  EXPECT_TRUE(e.complete);
  // Two sums of four terms of size 1: a rounding or two of each.
  EXPECT_LE(std::abs(e.kl_max), 8 * 0x1p-53);
  EXPECT_EQ(e.token_error, (std::vector<double>{0.0, 0.0, 0.0}));
  EXPECT_EQ(e.top1, (std::vector<std::int64_t>{1, 0, 3}));
}

// One element off by 0.25 in the decode step: by hand.
TEST(EndToEnd, OneElementByHand) {
  const EndToEnd e = measured(run_with({kTruth, changed(9, 0.25)}));
  double squares = 0.0;
  for (const double x : kTruth) squares += x * x;
  EXPECT_DOUBLE_EQ(e.rel_fro, 0.25 / std::sqrt(squares));
  EXPECT_DOUBLE_EQ(e.rel_max, 0.25 / 4.0);
  EXPECT_EQ(e.worst_rank, 1);
  EXPECT_EQ(e.phase, Phase::decode);
  EXPECT_EQ(e.step, 0);
  EXPECT_EQ(e.row, 0);
  EXPECT_EQ(e.column, 1);
  EXPECT_EQ(e.got, 0.25);
  EXPECT_EQ(e.expected, 0.0);
  EXPECT_EQ(e.token_error, (std::vector<double>{0.0, 0.0, 0.25}));
}

// KL(p || q) = sum p log(p / q), with p and q written out.
TEST(EndToEnd, DivergenceByHand) {
  const EndToEnd e = measured(run_with({changed(4, 2.5)}));
  const std::vector<double> a{2.0, 0.25, 1.75, -4.0}, b{2.5, 0.25, 1.75, -4.0};
  double za = 0.0, zb = 0.0, kl = 0.0;
  for (std::size_t i = 0; i < 4; ++i) {
    za += std::exp(a[i]);
    zb += std::exp(b[i]);
  }
  for (std::size_t i = 0; i < 4; ++i)
    kl += std::exp(a[i]) / za * std::log(std::exp(a[i]) / za / (std::exp(b[i]) / zb));
  EXPECT_GT(kl, 0.01);
  EXPECT_NEAR(e.kl_max, kl, 16 * 0x1p-53);
  EXPECT_NEAR(e.kl_mean, kl / 3.0, 16 * 0x1p-53);
}

TEST(EndToEnd, NanIsLargerThanAnyNumber) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{11}}) {
    const EndToEnd e = measured(run_with({kTruth, changed(at, kNan), kTruth}));
    EXPECT_TRUE(std::isnan(e.rel_fro));
    EXPECT_TRUE(std::isnan(e.rel_max));
    EXPECT_FALSE(e.rel_max <= kG2Limit);
    EXPECT_EQ(e.worst_rank, 1);
    EXPECT_TRUE(std::isnan(e.got));
  }
}

TEST(EndToEnd, TheWorstRankCounts) {
  EXPECT_EQ(measured(run_with({changed(2, -2.5), kTruth, changed(2, -3.0)})).worst_rank, 2);
  EXPECT_EQ(measured(run_with({changed(2, -9.5), kTruth, changed(2, -3.0)})).worst_rank, 0);
}

// The second token's first and second choice are 0.25 apart.
TEST(EndToEnd, FlipsAreExcusedByTheYardstick) {
  std::vector<double> logits = kTruth;
  logits[6] = 2.25;
  const TapRun run = run_with({logits});
  EXPECT_EQ(measured(run).flips, 1);
  EXPECT_EQ(measured(run).unexcused, 1) << "without a yardstick no flip is excused";
  EXPECT_DOUBLE_EQ(measured(run).top1_agree, 2.0 / 3.0);
  EndToEnd yardstick;
  yardstick.token_error = {0.0, 0.0625, 0.0};  // 4 times it is the gap
  EXPECT_EQ(measured(run, &yardstick).unexcused, 0);
  yardstick.token_error[1] = std::nextafter(0.0625, 0.0);
  EXPECT_EQ(measured(run, &yardstick).unexcused, 1);
  yardstick.token_error = {9.0, 0.0, 9.0};  // other tokens' errors excuse nothing
  EXPECT_EQ(measured(run, &yardstick).unexcused, 1);
}

TEST(EndToEnd, MissingLogitsAreIncomplete) {
  TapRun run = run_with({kTruth, kTruth});
  run.steps[1].values[0].ranks[1] = HostTensor();
  EXPECT_FALSE(measured(run).complete);
  EXPECT_EQ(measured(run).worst_rank, 1);
  run = run_with({kTruth});
  run.steps[0].values[0].ranks[0] = round_to(DType::f64, {2, 3}, std::vector<double>(6, 1.0));
  EXPECT_FALSE(measured(run).complete);
  run.steps[0].values.clear();
  run.steps[0].index.clear();
  EXPECT_FALSE(measured(run).complete);
}

// Every sequence on its own: what stood before in the batch must not be seen.
TEST(EndToEnd, ReferenceRunsEverySequenceFromItsStart) {
  const Model model = load_model("tiny-llama");
  const Sequences sequences{{3, 1, 4, 1, 5}, {9, 2}, {3, 1, 4, 1, 5}};
  const ReferenceLogits logits = reference_logits(model, sequences);
  ASSERT_EQ(logits.size(), 3u);
  EXPECT_EQ(logits[0].rows(), 5);
  EXPECT_EQ(logits[1].rows(), 2);
  EXPECT_TRUE(std::ranges::equal(logits[0].values(), logits[2].values()));
  const ReferenceLogits alone = reference_logits(model, {{9, 2}});
  EXPECT_TRUE(std::ranges::equal(logits[1].values(), alone[0].values()));
}

}  // namespace
}  // namespace shardcheck::testing
