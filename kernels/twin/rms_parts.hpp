// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// s = sum of x_i^2 over the columns, kept in the accumulate dtype.                            x [M, n]  answer [M, 1]
///
/// b = (sqrt(n) + 1) u_acc s + half an ulp of underflow: the terms are all positive, so that a running sum is as large
/// as its result, and each of its n roundings is one of the result.
inline Answer square_sum(const Matrix& x, const Arithmetic& arithmetic) {
  const double relative = (std::sqrt(static_cast<double>(x.cols)) + 1) *
                          accumulator_roundoff(arithmetic);
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    double squares = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += x(m, i) * x(m, i);
    answer.add(squares, relative * squares + half_min_subnormal(arithmetic.accumulate));
  }
  return answer;
}

/// y_i = x_i / sqrt(s / features + eps) w_i, s the given sum of squares of the whole row.
///                                                              x, answer [M, n]  weight [1, n]  squares [M, 1]
/// b = (u_out + 4 u_acc) |y| + half an ulp of underflow: the quotient, the root, its inverse and the two products.
inline Answer rms_apply(const Matrix& x, const Matrix& weight, const Matrix& squares,
                        double features, double eps, DType out, const Arithmetic& arithmetic) {
  const double relative = unit_roundoff(out) + 4 * accumulator_roundoff(arithmetic);
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const double y = x(m, i) / std::sqrt(squares(m, 0) / features + eps) * weight(0, i);
      answer.add(y, relative * std::abs(y) + half_min_subnormal(out));
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
