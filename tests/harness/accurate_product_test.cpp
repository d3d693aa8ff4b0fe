// SPDX-License-Identifier: Apache-2.0
#include "harness/accurate_product.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace shardcheck {
namespace {

constexpr std::int64_t kRows = 5, kCols = 7;

// Numbers of all 53 bits; one term in a hundred is a thousand times larger.
std::vector<double> numbers(std::int64_t n, unsigned seed) {
  std::mt19937_64 bits(seed);
  std::normal_distribution<double> normal;
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(normal(bits) * (bits() % 100 == 0 ? 1000.0 : 1.0));
  return values;
}

TEST(AccurateProduct, RoundsOnceWhereAPlainProductDoesNot) {
  int plain_worse = 0;
  for (const std::int64_t terms : {1, 3, 96, 1536, 5000}) {
    const std::vector<double> x = numbers(kRows * terms, 1), w = numbers(kCols * terms, 2);
    std::vector<double> y(kRows * kCols);
    accurate_product(x.data(), terms, kRows, w.data(), terms, kCols, terms, y.data(), kCols);
    for (std::int64_t m = 0; m < kRows; ++m) {
      for (std::int64_t n = 0; n < kCols; ++n) {
        // Long double has 11 bits more: its own error is 2^-11 of a plain product's.
        long double sum = 0.0L, norm = 0.0L;
        double plain = 0.0;
        for (std::int64_t k = 0; k < terms; ++k) {
          const auto i = static_cast<std::size_t>(m * terms + k),
                     j = static_cast<std::size_t>(n * terms + k);
          const long double product = static_cast<long double>(x[i]) * static_cast<long double>(w[j]);
          sum += product;
          norm += product * product;
          plain += x[i] * w[j];
        }
        const auto error_of = [sum](double value) {
          return std::abs(static_cast<double>(static_cast<long double>(value) - sum));
        };
        const double once = 0x1p-53 * std::abs(static_cast<double>(sum));
        const double unit = 0x1p-53 * std::sqrt(static_cast<double>(terms)) *
                            static_cast<double>(std::sqrt(norm));
        EXPECT_LE(error_of(y[static_cast<std::size_t>(m * kCols + n)]), once + 0x1p-8 * unit) << terms;
        plain_worse += error_of(plain) > once + 0x1p-8 * unit ? 1 : 0;
      }
    }
  }
  EXPECT_GT(plain_worse, 0);
}

TEST(AccurateProduct, StridesAndManyRows) {
  constexpr std::int64_t rows = 1100, terms = 9;
  const std::vector<double> x = numbers(rows * 12, 3), w = numbers(kCols * 15, 4);
  std::vector<double> y(rows * 8, 77.0);
  accurate_product(x.data() + 2, 12, rows, w.data() + 4, 15, kCols, terms, y.data(), 8);
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t n = 0; n < kCols; ++n) {
      long double sum = 0.0L, largest = 0.0L;
      for (std::int64_t k = 0; k < terms; ++k) {
        const long double product = static_cast<long double>(
                                        x[static_cast<std::size_t>(m * 12 + 2 + k)]) *
                                    static_cast<long double>(
                                        w[static_cast<std::size_t>(n * 15 + 4 + k)]);
        sum += product;
        largest = std::max(largest, std::abs(product));
      }
      const double got = y[static_cast<std::size_t>(m * 8 + n)];
      EXPECT_LE(std::abs(got - static_cast<double>(sum)),
                0x1p-52 * static_cast<double>(std::abs(sum) + 0x1p-8L * largest));
    }
    EXPECT_EQ(y[static_cast<std::size_t>(m * 8 + 7)], 77.0) << "beyond the columns";
  }
}

TEST(AccurateProduct, ExtremesAndSpecialValues) {
  const auto dot = [](std::vector<double> x, std::vector<double> w) {
    double y = 77.0;
    const auto n = static_cast<std::int64_t>(x.size());
    accurate_product(x.data(), n, 1, w.data(), n, 1, n, &y, 1);
    return y;
  };
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(dot({}, {}), 0.0);
  EXPECT_EQ(dot({0.0, 0.0}, {3.0, 4.0}), 0.0);
  EXPECT_EQ(dot({0x1p1000, 1.0}, {0x1p-1000, 2.0}), 3.0);
  EXPECT_EQ(dot({0x1p-1060}, {0x1p40}), 0x1p-1020);
  EXPECT_EQ(dot({inf, 1.0}, {2.0, 1.0}), inf);
  EXPECT_TRUE(std::isnan(dot({inf, 1.0}, {0.0, 1.0})));
  EXPECT_TRUE(std::isnan(dot({std::numeric_limits<double>::quiet_NaN(), 1.0}, {2.0, 1.0})));
  // Cancellation to the last bit of a product of 53 bits each.
  const double a = 1.0 + 0x1p-52;
  EXPECT_EQ(dot({a, -1.0, -1.0}, {a, 1.0, 0x1p-51}), 0x1p-104);
}

}  // namespace
}  // namespace shardcheck
