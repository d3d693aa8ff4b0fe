// SPDX-License-Identifier: Apache-2.0
// RoPE and attention against naive twins in a wider type, within bounds derived from unit roundoff.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/blocks.hpp"
#include "tests/reference/rounding_bound.hpp"

namespace shardcheck::reference {
namespace {

RopeConfig rope_of(RopeConfig::Type type, double theta) {
  RopeConfig rope;
  rope.type = type;
  rope.theta = theta;
  return rope;
}

TEST(RopeFrequencies, AreInversePowersOfTheBase) {
  for (const double theta : {100.0, 1e4, 5e5}) {
    const std::vector<double> f = rope_frequencies(rope_of(RopeConfig::Type::standard, theta), 64);
    ASSERT_EQ(f.size(), 32u);
    for (std::size_t i = 0; i < f.size(); ++i) {
      const long double exact = 1.0L / std::pow(static_cast<long double>(theta),
                                                static_cast<long double>(i) / 32.0L);
      // pow within an ulp and the quotient; 2i / d is exact here.
      EXPECT_LE(std::abs(f[i] - exact), 4.0L * kUnitRoundoff<double> * exact) << theta << " " << i;
    }
  }
}

TEST(RopeFrequencies, LinearDividesAll) {
  const std::vector<double> standard = rope_frequencies(rope_of(RopeConfig::Type::standard, 1e4), 16);
  RopeConfig linear = rope_of(RopeConfig::Type::linear, 1e4);
  linear.factor = 4.0;
  const std::vector<double> divided = rope_frequencies(linear, 16);
  for (std::size_t i = 0; i < divided.size(); ++i) EXPECT_EQ(divided[i], standard[i] / 4.0);
}

TEST(RopeFrequencies, Llama3KeepsShortWavesDividesLongOnesAndBlendsBetween) {
  RopeConfig llama3 = rope_of(RopeConfig::Type::llama3, 5e5);
  llama3.factor = 8.0;
  llama3.low_freq_factor = 1.0;
  llama3.high_freq_factor = 4.0;
  llama3.original_max_positions = 8192.0;
  const std::vector<double> standard = rope_frequencies(rope_of(RopeConfig::Type::standard, 5e5), 128);
  const std::vector<double> scaled = rope_frequencies(llama3, 128);
  int kept = 0, blended = 0, divided = 0;
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const double wavelength = 2.0 * std::acos(-1.0) / standard[i];
    if (wavelength < 8192.0 / 4.0) {
      EXPECT_EQ(scaled[i], standard[i]);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_EQ(scaled[i], standard[i] / 8.0);
      ++divided;
    } else {
      EXPECT_GT(scaled[i], standard[i] / 8.0);
      EXPECT_LT(scaled[i], standard[i]);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(divided, 0);
}

template <typename T>
class Attention : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Attention, Scalars);

// Every head: x_i and x_{i + half} are the coordinates of a point that is turned.
template <typename T>
std::vector<Expected<T>> naive_rope(const Matrix<T>& x, const std::vector<std::int64_t>& positions,
                                    const std::vector<double>& frequencies) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  std::vector<Expected<T>> y(x.values().size());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t column = 0; column < x.cols(); ++column) {
      const std::int64_t i = column % (2 * half) % half;
      const bool low = column % (2 * half) < half;
      const double angle = static_cast<double>(positions[static_cast<std::size_t>(m)]) *
                           frequencies[static_cast<std::size_t>(i)];
      const Wide<T> self = x(m, column);
      const Wide<T> other = x(m, low ? column + half : column - half);
      const Wide<T> turned = self * std::cos(Wide<T>(angle)) +
                             (low ? -other : other) * std::sin(Wide<T>(angle));
      // cos and sin within an ulp of T, a product and the sum: 4 u of each term.
      const double bound = 4.0 * kUnitRoundoff<T> *
                           static_cast<double>(std::abs(self) + std::abs(other));
      y[static_cast<std::size_t>(m * x.cols() + column)] = {turned, bound};
    }
  }
  return y;
}

TYPED_TEST(Attention, RopeTurnsThePairsOfEveryHead) {
  using T = TypeParam;
  const std::vector<double> frequencies = rope_frequencies(rope_of(RopeConfig::Type::standard, 1e4), 8);
  const Matrix<T> x = varied<T>(4, 24, 1);
  const std::vector<std::int64_t> positions{0, 3, 17, 4000};
  EXPECT_TRUE(within(rope(x, positions, frequencies), naive_rope(x, positions, frequencies)));
  EXPECT_FALSE(within(rope(x, std::vector<std::int64_t>{0, 3, 17, 4001}, frequencies),
                      naive_rope(x, positions, frequencies)));
  for (std::int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(rope(x, positions, frequencies)(0, i), x(0, i));  // position 0
}

template <typename T>
std::vector<Expected<T>> naive_attention(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                                         const std::vector<std::int64_t>& q_positions,
                                         const std::vector<std::int64_t>& k_positions, double scale,
                                         std::int64_t window) {
  std::vector<Expected<T>> y;
  for (std::int64_t m = 0; m < q.rows(); ++m) {
    std::vector<Wide<T>> weights(static_cast<std::size_t>(k.rows()), 0);
    Wide<T> total = 0;
    double score_error = 0.0;
    for (std::int64_t n = 0; n < k.rows(); ++n) {
      const std::int64_t distance = q_positions[static_cast<std::size_t>(m)] -
                                    k_positions[static_cast<std::size_t>(n)];
      if (distance < 0 || (window > 0 && distance >= window)) continue;
      Wide<T> score = 0, sizes = 0;
      for (std::int64_t i = 0; i < q.cols(); ++i) {
        score += Wide<T>(q(m, i)) * Wide<T>(k(n, i)) * Wide<T>(scale);
        sizes += std::abs(Wide<T>(q(m, i)) * Wide<T>(k(n, i)) * Wide<T>(scale));
      }
      score_error = std::max(score_error, gamma<T>(q.cols() + 2) * static_cast<double>(sizes));
      weights[static_cast<std::size_t>(n)] = std::exp(score);
      total += weights[static_cast<std::size_t>(n)];
    }
    for (std::int64_t i = 0; i < v.cols(); ++i) {
      Wide<T> value = 0, sizes = 0;
      for (std::int64_t n = 0; n < k.rows(); ++n) {
        const Wide<T> weight = total == 0 ? Wide<T>(0) : weights[static_cast<std::size_t>(n)] / total;
        value += weight * Wide<T>(v(n, i));
        sizes += std::abs(weight * Wide<T>(v(n, i)));
      }
      // A weight errs relatively by its score's error, the largest score's, the rounding of their difference (their
      // size is bounded by the same sums), the same in the total, and the sums over N keys.
      const double relative = 4.0 * score_error + gamma<T>(2 * k.rows() + 8);
      y.push_back({value, 2.0 * relative * static_cast<double>(sizes)});  // twice: products of errors
    }
  }
  return y;
}

TYPED_TEST(Attention, EqualsTheDoubleLoopWithAndWithoutWindow) {
  using T = TypeParam;
  const Matrix<T> q = varied<T>(5, 6, 2), k = varied<T>(9, 6, 3), v = varied<T>(9, 4, 4);
  const std::vector<std::int64_t> q_positions{4, 5, 6, 7, 8};
  std::vector<std::int64_t> k_positions(9);
  std::iota(k_positions.begin(), k_positions.end(), 0);
  for (const std::int64_t window : {0, 1, 3, 100}) {
    const std::vector<Expected<T>> twin = naive_attention(q, k, v, q_positions, k_positions, 0.4,
                                                          window);
    EXPECT_TRUE(within(attention_head<T>(q, k, v, q_positions, k_positions, 0.4, window), twin))
        << window;
    EXPECT_FALSE(within(
        attention_head<T>(q, k, v, q_positions, k_positions, 0.4, window == 3 ? 4 : 3), twin));
    EXPECT_FALSE(within(attention_head<T>(q, k, v, q_positions, k_positions, 0.41, window), twin) &&
                 window != 1);
  }
}

TYPED_TEST(Attention, ARowThatSeesNoKeyIsZeroAndKeysNeedNoOrder) {
  using T = TypeParam;
  const Matrix<T> q = varied<T>(2, 6, 5), k = varied<T>(3, 6, 6), v = varied<T>(3, 4, 7);
  const std::vector<std::int64_t> q_positions{1, 9}, k_positions{12, 3, 7};
  const Matrix<T> y = attention_head<T>(q, k, v, q_positions, k_positions, 0.4, 0);
  EXPECT_TRUE(within(y, naive_attention(q, k, v, q_positions, k_positions, 0.4, 0)));
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(y(0, i), T(0));
  const Matrix<T> none = attention_head<T>(q, Matrix<T>(0, 6), Matrix<T>(0, 4), q_positions, {},
                                           0.4, 0);
  for (const T value : none.values()) EXPECT_EQ(value, T(0));
  EXPECT_EQ(attention_head<T>(Matrix<T>(0, 6), k, v, {}, k_positions, 0.4, 0).rows(), 0);
}

TYPED_TEST(Attention, LargeScoresDoNotOverflow) {
  using T = TypeParam;
  const Matrix<T> q(1, 2, std::vector<T>{1000, 0}), k(2, 2, std::vector<T>{1000, 0, -1000, 0});
  const Matrix<T> v(2, 1, std::vector<T>{3, 5});
  const std::vector<std::int64_t> q_positions{1}, k_positions{0, 1};
  EXPECT_EQ(attention_head<T>(q, k, v, q_positions, k_positions, 1.0, 0)(0, 0), T(3));
}

TYPED_TEST(Attention, EachQueryHeadReadsItsOwnKeyHead) {
  using T = TypeParam;
  const Matrix<T> q = varied<T>(4, 3 * 6, 8), k = varied<T>(4, 2 * 6, 9), v = varied<T>(4, 2 * 6, 10);
  const std::vector<std::int64_t> positions{0, 1, 2, 3}, kv_heads{1, 0, 1};
  const Matrix<T> y = attention<T>(q, k, v, kv_heads, positions, positions, 0.4, 0);
  for (std::int64_t h = 0; h < 3; ++h) {
    const std::int64_t kv = kv_heads[static_cast<std::size_t>(h)];
    const Matrix<T> head = attention_head<T>(columns(q, h * 6, 6), columns(k, kv * 6, 6),
                                             columns(v, kv * 6, 6), positions, positions, 0.4, 0);
    EXPECT_TRUE(std::ranges::equal(columns(y, h * 6, 6).values(), head.values())) << h;
  }
}

}  // namespace
}  // namespace shardcheck::reference
