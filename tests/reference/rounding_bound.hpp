// SPDX-License-Identifier: Apache-2.0
// How far a computed value may lie from the exact one, from unit roundoff alone; and inputs that vary.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "reference/matrix.hpp"

namespace shardcheck::reference {

/// The type in which a naive twin is computed, so that its own rounding doesn't count.
template <typename T>
struct Wider;
template <>
struct Wider<float> {
  using type = double;
};
template <>
struct Wider<double> {
  using type = long double;
};
template <typename T>
using Wide = typename Wider<T>::type;

template <typename T>
inline constexpr double kUnitRoundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2.0;

/// gamma_n = n u / (1 - n u): the relative error of n roundings in a row (Higham, Accuracy and Stability, 3.1).
template <typename T>
double gamma(std::int64_t n) {
  const double nu = static_cast<double>(n) * kUnitRoundoff<T>;
  return nu / (1.0 - nu);
}

/// Normal numbers of very different size, from a seed.
template <typename T>
Matrix<T> varied(std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  Matrix<T> x(rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    x.data()[i] = static_cast<T>(normal(engine) * std::exp(normal(engine)));
  return x;
}

template <typename T>
std::vector<T> varied_vector(std::int64_t size, unsigned seed) {
  const Matrix<T> values = varied<T>(1, size, seed);
  return {values.values().begin(), values.values().end()};
}

/// A value from a twin and how far the tested one may lie from it.
template <typename T>
struct Expected {
  Wide<T> value = 0;
  double bound = 0.0;
};

/// Whether every element lies within its bound; NaN doesn't.
template <typename T>
testing::AssertionResult within(const Matrix<T>& got, const std::vector<Expected<T>>& expected) {
  if (got.values().size() != expected.size()) return testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = static_cast<double>(
        std::abs(static_cast<Wide<T>>(got.values()[i]) - expected[i].value));
    if (!(error <= expected[i].bound)) {
      return testing::AssertionFailure()
             << "element " << i << " is off by " << error << ", bound " << expected[i].bound;
    }
  }
  return testing::AssertionSuccess();
}

/// Rows of a whole matrix, as a checkpoint gives them.
template <typename T>
WeightRows<T> rows_of(const Matrix<T>& weight) {
  return [&weight](std::int64_t begin, std::int64_t end, std::span<T> out) {
    std::copy(weight.data() + begin * weight.cols(), weight.data() + end * weight.cols(), out.begin());
  };
}

}  // namespace shardcheck::reference
