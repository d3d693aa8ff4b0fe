// SPDX-License-Identifier: Apache-2.0
#include "harness/criterion.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace shardcheck {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kMax = 65504.0;

struct Numbers {
  std::int64_t rows, cols;
  std::vector<double> got, expected, budget;
};

// Expected values of many sizes, got off by a random share of the budget.
Numbers numbers(std::int64_t rows, std::int64_t cols, double share, unsigned seed) {
  Numbers n{rows, cols, {}, {}, {}};
  std::mt19937 bits(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    n.expected.push_back(std::exp(4.0 * uniform(bits)) * (uniform(bits) > 0 ? 1.0 : -1.0));
    n.budget.push_back(0x1p-8 * std::abs(n.expected.back()));
    n.got.push_back(n.expected.back() + share * uniform(bits) * n.budget.back());
  }
  return n;
}

Statistics statistics(const Numbers& n) {
  Statistics s(n.rows, n.cols, kMax);
  const auto width = static_cast<std::size_t>(n.cols);
  for (std::int64_t row = 0; row < n.rows; ++row) {
    const std::size_t at = static_cast<std::size_t>(row) * width;
    s.add(row, 0, {n.got.data() + at, width}, {n.expected.data() + at, width},
          {n.budget.data() + at, width});
  }
  return s;
}

TEST(Criterion, IsWhatItsDefinitionSays) {
  const Numbers n = numbers(20, 30, 1.0, 1);
  double largest = 0.0, all = 0.0, line = 0.0;
  std::vector<double> rows(20), cols(30);
  for (std::size_t i = 0; i < n.got.size(); ++i) {
    const double ratio = std::abs(n.got[i] - n.expected[i]) / n.budget[i];
    largest = std::max(largest, ratio);
    all += ratio * ratio / 600.0;
    rows[i / 30] += ratio * ratio / 30.0;
    cols[i % 30] += ratio * ratio / 20.0;
  }
  for (const double r : rows) line = std::max(line, std::sqrt(r));
  for (const double c : cols) line = std::max(line, std::sqrt(c));
  const Statistics s = statistics(n);
  EXPECT_EQ(s.a(), largest);
  EXPECT_NEAR(s.b(), std::sqrt(all), 600 * 0x1p-53);
  EXPECT_NEAR(s.c(), line, 30 * 0x1p-53);
  EXPECT_EQ(s.count(), 600);
}

TEST(Criterion, OneElementIsSeenByAAndFound) {
  Numbers n = numbers(20, 30, 1.0, 2);
  n.got[7 * 30 + 11] = n.expected[7 * 30 + 11] + 9.0 * n.budget[7 * 30 + 11];
  const Statistics s = statistics(n);
  EXPECT_NEAR(s.a(), 9.0, 9.0 * 0x1p-40);
  EXPECT_EQ(s.worst().row, 7);
  EXPECT_EQ(s.worst().col, 11);
  EXPECT_EQ(s.worst().got, n.got[7 * 30 + 11]);
  EXPECT_EQ(s.worst().expected, n.expected[7 * 30 + 11]);
}

TEST(Criterion, AllALittleWrongIsSeenByB) {
  Numbers n = numbers(20, 30, 1.0, 3);
  for (std::size_t i = 0; i < n.got.size(); ++i)
    n.got[i] = n.expected[i] + (i % 2 == 0 ? 0.9 : -0.9) * n.budget[i];
  const Statistics s = statistics(n);
  EXPECT_LT(s.a(), 1.0);
  EXPECT_GT(s.b(), 0.7);
}

TEST(Criterion, OneColumnIsSeenByC) {
  Numbers n = numbers(20, 400, 1.0, 4);
  for (std::int64_t row = 0; row < 20; ++row) {
    const auto i = static_cast<std::size_t>(row * 400 + 123);
    n.got[i] = n.expected[i] + 2.0 * n.budget[i];
  }
  const Statistics s = statistics(n);
  EXPECT_LT(s.a(), 4.0);
  EXPECT_LT(s.b(), 0.7);
  EXPECT_GT(s.c(), 1.5);
}

TEST(Criterion, EqualIsZeroWhateverTheBudget) {
  Statistics s(1, 3, kMax);
  const std::vector<double> x{1.0, 0.0, -3.0};
  s.add(0, 0, x, x, {});
  EXPECT_EQ(s.a(), 0.0);
  EXPECT_EQ(s.count(), 3);
}

TEST(Criterion, AnyDifferenceWithoutABudgetIsInfinite) {
  for (const bool empty : {true, false}) {
    Statistics s(1, 2, kMax);
    const std::vector<double> got{1.0, std::nextafter(2.0, 3.0)}, expected{1.0, 2.0}, none{0.0, 0.0};
    s.add(0, 0, got, expected, empty ? std::span<const double>{} : std::span<const double>(none));
    EXPECT_EQ(s.a(), kInf);
    EXPECT_EQ(s.worst().col, 1);
    EXPECT_FALSE(s.not_finite());
  }
}

TEST(Criterion, NaNIsNeverSmall) {
  for (const double bad : {kNaN, kInf, -kInf}) {
    Numbers n = numbers(20, 30, 1.0, 5);
    n.got[3 * 30 + 4] = bad;
    const Statistics s = statistics(n);
    EXPECT_FALSE(s.a() <= 1e300);
    EXPECT_FALSE(s.b() <= 1e300);
    EXPECT_FALSE(s.c() <= 1e300);
    EXPECT_TRUE(s.not_finite());
    EXPECT_EQ(s.worst().row, 3);
    EXPECT_EQ(s.worst().col, 4);
  }
}

TEST(Criterion, ARecomputationThatIsNotFiniteIsNotAMatch) {
  for (const double bad : {kNaN, kInf}) {
    Numbers n = numbers(20, 30, 1.0, 6);
    n.expected[3 * 30 + 4] = bad;
    const Statistics s = statistics(n);
    EXPECT_FALSE(s.a() <= 1e300);
    EXPECT_TRUE(s.expected_not_finite());
  }
}

TEST(Criterion, InfinityIsRightBeyondTheLargestNumber) {
  const std::vector<double> budget{kMax * 0x1p-11};
  const auto a = [&](double got, double expected) {
    Statistics s(1, 1, kMax);
    s.add(0, 0, std::vector<double>{got}, std::vector<double>{expected}, budget);
    return s.a();
  };
  EXPECT_EQ(a(kInf, 70000.0), 0.0);
  EXPECT_EQ(a(-kInf, -70000.0), 0.0);
  EXPECT_FALSE(a(-kInf, 70000.0) <= 8.0);
  EXPECT_FALSE(a(kInf, 60000.0) <= 8.0);
  EXPECT_FALSE(a(kMax, 90000.0) <= 8.0);
}

TEST(Criterion, SmallTensorsAreJudgedByAAlone) {
  Numbers n = numbers(15, 15, 1.0, 7);
  for (std::size_t i = 0; i < n.got.size(); ++i) n.got[i] = n.expected[i] + 2.0 * n.budget[i];
  const Statistics s = statistics(n);
  EXPECT_GT(s.a(), 1.5);
  EXPECT_EQ(s.b(), 0.0);
  EXPECT_EQ(s.c(), 0.0);
}

TEST(Criterion, AnEmptyTensorPasses) {
  Statistics s(0, 12, kMax);
  s.add(0, 0, {}, {}, {});
  EXPECT_EQ(s.a(), 0.0);
  EXPECT_EQ(s.b(), 0.0);
  EXPECT_EQ(s.c(), 0.0);
  EXPECT_EQ(s.worst().row, -1);
}

TEST(Criterion, PiecesOfRowsGiveTheSame) {
  const Numbers n = numbers(20, 30, 1.0, 8);
  const Statistics whole = statistics(n);
  Statistics pieces(20, 30, kMax);
  for (const auto& [begin, size] : {std::pair<std::size_t, std::size_t>{0, 7}, {7, 20}, {27, 3}}) {
    for (std::size_t row = 0; row < 20; ++row) {
      const std::size_t at = row * 30 + begin;
      pieces.add(static_cast<std::int64_t>(row), static_cast<std::int64_t>(begin),
                 {n.got.data() + at, size}, {n.expected.data() + at, size},
                 {n.budget.data() + at, size});
    }
  }
  EXPECT_EQ(pieces.a(), whole.a());
  EXPECT_NEAR(pieces.b(), whole.b(), 600 * 0x1p-53);
  EXPECT_NEAR(pieces.c(), whole.c(), 30 * 0x1p-53);
  EXPECT_EQ(pieces.worst().col, whole.worst().col);
}

// One token repeated rounds the same in every row: its column is one sample, however long.
TEST(Criterion, RepeatedTokensAreOneSampleOfAColumn) {
  Numbers n = numbers(20, 30, 1.0, 9);
  n.got[5] = n.expected[5] + 1.8 * n.budget[5];
  Numbers repeated = n;
  for (std::size_t row = 1; row < 20; ++row) {
    for (std::size_t col = 0; col < 30; ++col) {
      repeated.got[row * 30 + col] = n.got[col];
      repeated.expected[row * 30 + col] = n.expected[col];
      repeated.budget[row * 30 + col] = n.budget[col];
    }
  }
  EXPECT_LT(statistics(repeated).c(), 1.0);
  // The same error in rows that differ is a wrong column.
  for (std::size_t row = 0; row < 20; ++row)
    n.got[row * 30 + 5] = n.expected[row * 30 + 5] + 1.8 * n.budget[row * 30 + 5];
  EXPECT_GT(statistics(n).c(), 1.5);
}

}  // namespace
}  // namespace shardcheck
