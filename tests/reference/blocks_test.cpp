// SPDX-License-Identifier: Apache-2.0
// Each block against a naive twin in a wider type, within bounds derived from unit roundoff.
#include "reference/blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/reference/rounding_bound.hpp"

namespace shardcheck::reference {
namespace {

template <typename T>
class Blocks : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Blocks, Scalars);

TYPED_TEST(Blocks, EmbeddingCopiesRows) {
  using T = TypeParam;
  const Matrix<T> table = varied<T>(7, 5, 1);
  const std::vector<std::int64_t> ids{6, 0, 3, 3};
  const Matrix<T> y = embedding<T>(ids, 5, rows_of(table));
  for (std::int64_t m = 0; m < 4; ++m) {
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(y(m, i), table(ids[static_cast<std::size_t>(m)], i));
  }
}

template <typename T>
std::vector<Expected<T>> naive_linear(const Matrix<T>& x, const Matrix<T>& w,
                                      const std::vector<T>& bias) {
  std::vector<Expected<T>> y;
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t o = 0; o < w.rows(); ++o) {
      Wide<T> sum = bias.empty() ? Wide<T>(0) : Wide<T>(bias[static_cast<std::size_t>(o)]);
      Wide<T> sizes = std::abs(sum);
      for (std::int64_t i = 0; i < x.cols(); ++i) {
        sum += Wide<T>(x(m, i)) * Wide<T>(w(o, i));
        sizes += std::abs(Wide<T>(x(m, i)) * Wide<T>(w(o, i)));
      }
      y.push_back({sum, gamma<T>(x.cols() + 1) * static_cast<double>(sizes)});
    }
  }
  return y;
}

TYPED_TEST(Blocks, LinearEqualsTheTripleLoop) {
  using T = TypeParam;
  // 1500 rows are two blocks of weights, the second one not full; 1 and 0 tokens take their own path.
  for (const std::int64_t tokens : {3, 1, 0}) {
    const Matrix<T> x = varied<T>(tokens, 33, 2), w = varied<T>(1500, 33, 3);
    const std::vector<T> bias = varied_vector<T>(1500, 4);
    EXPECT_TRUE(within(linear<T>(x, 1500, rows_of(w), bias), naive_linear(x, w, bias)));
    EXPECT_TRUE(within(linear<T>(x, 1500, rows_of(w), {}), naive_linear(x, w, {})));
    if (tokens > 0) {
      EXPECT_FALSE(within(linear<T>(x, 1500, rows_of(w), {}), naive_linear(x, w, bias)));
      Matrix<T> wrong = w;
      wrong(1499, 32) += wrong(1499, 31);
      EXPECT_FALSE(within(linear<T>(x, 1500, rows_of(wrong), bias), naive_linear(x, w, bias)));
    }
  }
}

TYPED_TEST(Blocks, LinearAsksForBlocksOfRowsNotForTheWholeWeight) {
  using T = TypeParam;
  const Matrix<T> x = varied<T>(2, 4096, 5);
  std::int64_t largest = 0, next = 0;
  linear<T>(x, 3000,
            [&](std::int64_t begin, std::int64_t end, std::span<T> out) {
              EXPECT_EQ(begin, next);
              EXPECT_EQ(out.size(), static_cast<std::size_t>((end - begin) * 4096));
              largest = std::max(largest, end - begin);
              next = end;
              std::fill(out.begin(), out.end(), T(1));
            },
            {});
  EXPECT_EQ(next, 3000);
  EXPECT_LT(largest, 1500);
}

template <typename T>
std::vector<Expected<T>> naive_rms_norm(const Matrix<T>& x, const std::vector<T>& w, double eps) {
  std::vector<Expected<T>> y;
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    Wide<T> squares = 0;
    for (const T v : x.row(m)) squares += Wide<T>(v) * Wide<T>(v);
    const Wide<T> rms = std::sqrt(squares / Wide<T>(x.cols()) + Wide<T>(eps));
    for (std::int64_t i = 0; i < x.cols(); ++i) {
      const Wide<T> value = Wide<T>(x(m, i)) / rms * Wide<T>(w[static_cast<std::size_t>(i)]);
      // All terms of the sum are positive, so each step is a relative error; the square root halves the sum's.
      y.push_back({value, gamma<T>(x.cols() / 2 + 6) * static_cast<double>(std::abs(value))});
    }
  }
  return y;
}

TYPED_TEST(Blocks, RmsNormEqualsItsFormula) {
  using T = TypeParam;
  const Matrix<T> x = varied<T>(4, 37, 6);
  const std::vector<T> w = varied_vector<T>(37, 7);
  EXPECT_TRUE(within(rms_norm<T>(x, w, 1e-2), naive_rms_norm(x, w, 1e-2)));
  EXPECT_FALSE(within(rms_norm<T>(x, w, 1.01e-2), naive_rms_norm(x, w, 1e-2)));
}

// Head by head with the same weight; a norm of the whole row, or of heads of another size, is another number.
TYPED_TEST(Blocks, HeadNormIsRmsNormOfEachHead) {
  using T = TypeParam;
  for (const std::int64_t tokens : {4, 1, 0}) {
    const Matrix<T> x = varied<T>(tokens, 3 * 14, 16);
    const std::vector<T> w = varied_vector<T>(14, 17);
    const Matrix<T> y = head_norm<T>(x, w, 1e-2);
    ASSERT_EQ(y.rows(), tokens);
    ASSERT_EQ(y.cols(), x.cols());
    for (std::int64_t head = 0; head < 3; ++head) {
      const Matrix<T> mine = columns(x, head * 14, 14);
      EXPECT_TRUE(within(columns(y, head * 14, 14), naive_rms_norm(mine, w, 1e-2)));
    }
    if (tokens == 0) continue;
    std::vector<T> spread;
    for (int head = 0; head < 3; ++head) spread.insert(spread.end(), w.begin(), w.end());
    EXPECT_FALSE(within(y, naive_rms_norm(x, spread, 1e-2)));
  }
}

template <typename T>
std::vector<Expected<T>> naive_layer_norm(const Matrix<T>& x, const std::vector<T>& w,
                                          const std::vector<T>& b, double eps) {
  const auto n = static_cast<double>(x.cols());
  std::vector<Expected<T>> y;
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    Wide<T> sum = 0, sizes = 0, squares = 0;
    for (const T v : x.row(m)) sum += Wide<T>(v), sizes += std::abs(Wide<T>(v));
    const Wide<T> mean = sum / Wide<T>(n);
    for (const T v : x.row(m)) squares += (Wide<T>(v) - mean) * (Wide<T>(v) - mean);
    const Wide<T> sd = std::sqrt(squares / Wide<T>(n) + Wide<T>(eps));
    // The mean errs by gamma mean|x|, a centred value by D_i = gamma (mean|x| + |x_i|), the deviation by rms(D).
    const auto error_of_centred = [&](T v) {
      return gamma<T>(x.cols() + 1) *
             (static_cast<double>(sizes) / n + std::abs(static_cast<double>(v)));
    };
    double error_squares = 0.0;
    for (const T v : x.row(m)) error_squares += error_of_centred(v) * error_of_centred(v);
    const double relative_sd = std::sqrt(error_squares / n) / static_cast<double>(sd) +
                               gamma<T>(x.cols() + 6);
    for (std::int64_t i = 0; i < x.cols(); ++i) {
      const Wide<T> scale = Wide<T>(w[static_cast<std::size_t>(i)]) / sd;
      const Wide<T> centred = Wide<T>(x(m, i)) - mean;
      const Wide<T> value = centred * scale + Wide<T>(b[static_cast<std::size_t>(i)]);
      const double first_order = std::abs(static_cast<double>(scale)) *
                                     (error_of_centred(x(m, i)) +
                                      std::abs(static_cast<double>(centred)) * relative_sd) +
                                 kUnitRoundoff<T> * std::abs(static_cast<double>(value));
      y.push_back({value, 2.0 * first_order});  // products of errors are below the errors themselves
    }
  }
  return y;
}

TYPED_TEST(Blocks, LayerNormEqualsItsFormula) {
  using T = TypeParam;
  Matrix<T> x = varied<T>(4, 37, 8);
  for (std::int64_t i = 0; i < 37; ++i) x(3, i) += T(100);  // a mean much larger than the deviation
  const std::vector<T> w = varied_vector<T>(37, 9), b = varied_vector<T>(37, 10);
  EXPECT_TRUE(within(layer_norm<T>(x, w, b, 1e-2), naive_layer_norm(x, w, b, 1e-2)));
  EXPECT_FALSE(within(layer_norm<T>(x, w, b, 1.1e-2), naive_layer_norm(x, w, b, 1e-2)));
  EXPECT_FALSE(within(rms_norm<T>(x, w, 1e-2), naive_layer_norm(x, w, b, 1e-2)));
}

TYPED_TEST(Blocks, SiluAndGeluEqualTheirFormulas) {
  using T = TypeParam;
  Matrix<T> x = varied<T>(6, 50, 11);
  x(0, 0) = T(-200), x(0, 1) = T(200), x(0, 2) = T(0), x(0, 3) = T(-5);
  const double u = kUnitRoundoff<T>;
  std::vector<Expected<T>> silu_twin, gelu_twin;
  for (const T v : x.values()) {
    const Wide<T> w = v;
    const Wide<T> s = w / (1 + std::exp(-w));
    // exp within an ulp (2 u), the sum, the quotient; below the smallest normal number there is nothing to keep.
    silu_twin.push_back(
        {s, 4.0 * u * static_cast<double>(std::abs(s)) + std::numeric_limits<T>::min()});
    const Wide<T> slope = std::sqrt(Wide<T>(2) / std::acos(Wide<T>(-1)));
    const Wide<T> g = w / 2 * (1 + std::tanh(slope * (w + Wide<T>(0.044715) * w * w * w)));
    // The argument z errs by 6 roundings, which z tanh'(z) < 1/2 lets through as 3 u; tanh adds an ulp, its sum one
    // rounding: 6 u of |x| / 2, and two of the products.
    gelu_twin.push_back({g, 3.0 * u * static_cast<double>(std::abs(w)) +
                                2.0 * u * static_cast<double>(std::abs(g))});
  }
  EXPECT_TRUE(within(silu(x), silu_twin));
  EXPECT_TRUE(within(gelu_tanh(x), gelu_twin));
  EXPECT_FALSE(within(gelu_tanh(x), silu_twin));
  EXPECT_FALSE(within(silu(x), gelu_twin));
}

TYPED_TEST(Blocks, SumsAndProductsAreElementwise) {
  using T = TypeParam;
  const Matrix<T> a = varied<T>(3, 11, 12), b = varied<T>(3, 11, 13);
  const Matrix<T> sum = add(a, b), product = multiply(a, b);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t i = 0; i < 11; ++i) {
      EXPECT_EQ(sum(m, i), a(m, i) + b(m, i));
      EXPECT_EQ(product(m, i), a(m, i) * b(m, i));
    }
  }
}

TYPED_TEST(Blocks, NotANumberStaysOne) {
  using T = TypeParam;
  Matrix<T> x = varied<T>(2, 8, 14);
  x(1, 5) = std::numeric_limits<T>::quiet_NaN();
  const std::vector<T> w = varied_vector<T>(8, 15);
  const auto has_nan = [](const Matrix<T>& y) {
    return std::any_of(y.values().begin(), y.values().end(), [](T v) { return std::isnan(v); });
  };
  EXPECT_TRUE(has_nan(silu(x)));
  EXPECT_TRUE(has_nan(gelu_tanh(x)));
  EXPECT_TRUE(has_nan(rms_norm<T>(x, w, 1e-5)));
  EXPECT_TRUE(has_nan(layer_norm<T>(x, w, w, 1e-5)));
  EXPECT_FALSE(within(x, std::vector<Expected<T>>(16, {0, 1e9})));
  const std::vector<std::int64_t> positions{0, 1};
  EXPECT_TRUE(has_nan(attention_head<T>(x, x, x, positions, positions, 0.3, 0)));
}

}  // namespace
}  // namespace shardcheck::reference
