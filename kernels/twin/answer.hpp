// SPDX-License-Identifier: Apache-2.0
// The naive twins of the primitives: plain loops in f64 over matrices on the host, the way a textbook writes them, each
// with the error that a correct device may make. Every device's kernels are tested against them.
//
// A twin's answer is either exact (moving, adding once: the device must have its bits) or a value y with a budget b,
// the size of the error e of one correct evaluation. It is made of
//   u_out |y|                  the one rounding of the result
//   sqrt(K) u_acc q            K roundings of a sum in any order, q the root of the sum of squared terms
//   half the smallest number   what a rounding near zero may lose
// and holds for every order of summation, every tiling and every split, because roundings behave like independent
// errors: max |e| / b stays below 4 or so, and its root mean square below 0.7.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/device.hpp"
#include "model/dtype.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck::twin {

/// A matrix of values already rounded to its dtype, in f64.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;

  double operator()(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
};

/// Values in f64, row by row, and their budgets.
struct Answer {
  std::vector<double> value, budget;

  void add(double v, double b) {
    value.push_back(v);
    budget.push_back(b);
  }
};

/// u_acc: the relative error of one operation in the dtype that a device accumulates in.
inline double accumulator_roundoff(const Arithmetic& arithmetic) {
  return unit_roundoff(arithmetic.accumulate) * (arithmetic.truncating ? 2.0 : 1.0);
}

/// Below this a device's intermediate values may lose their precision or vanish.
inline double smallest_normal(const Arithmetic& arithmetic) {
  return std::ldexp(1.0, info(arithmetic.accumulate).min_exponent);
}

/// The matrix as a device stores it when it rounds once.
inline HostTensor rounded(DType dtype, const Matrix& matrix) {
  return round_to(dtype, {matrix.rows, matrix.cols}, matrix.values);
}

/// One value rounded once.
inline double rounded(DType dtype, double value) {
  return round_to(dtype, {1, 1}, std::span(&value, 1)).at(0);
}

/// How far a result is from its twin, in budgets. No error counts 0, an error without budget is infinite, so is NaN.
struct Distance {
  double worst = 0;             // A: the largest |e| / b
  double root_mean_square = 0;  // B
};

inline Distance distance(const std::vector<double>& got, const Answer& want) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (got.size() != want.value.size()) return {kInfinity, kInfinity};
  Distance result;
  double squares = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(got[i] - want.value[i]);
    double ratio = error == 0 || got[i] == want.value[i] ? 0 : error / want.budget[i];
    if (std::isnan(ratio)) ratio = kInfinity;
    result.worst = ratio > result.worst ? ratio : result.worst;
    squares += ratio * ratio;
  }
  if (!got.empty()) result.root_mean_square = std::sqrt(squares / static_cast<double>(got.size()));
  return result;
}

/// The limits of the local check: A <= 8 (4 for bf16, whose one rounding rules), B <= 0.7 from 256 elements on.
inline bool within_limits(const Distance& d, DType dtype, std::size_t elements) {
  return d.worst <= (dtype == DType::bf16 ? 4 : 8) && (elements < 256 || d.root_mean_square <= 0.7);
}

}  // namespace shardcheck::twin
