// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// y_i = x_i / sqrt(mean(x^2) + eps) w_i, the mean over the D columns.             x, answer [M, D]  weight [1, D]
///
/// b = (u_out + (sqrt(D) / 2 + 4) u_acc) |y| + half an ulp of underflow: the square root halves the sum's error.
inline Answer rms_norm(const Matrix& x, const Matrix& weight, double eps, DType out,
                       const Arithmetic& arithmetic) {
  const auto d = static_cast<double>(x.cols);
  const double relative = unit_roundoff(out) +
                          (std::sqrt(d) / 2 + 4) * accumulator_roundoff(arithmetic);
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    double squares = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) squares += x(m, i) * x(m, i);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const double y = x(m, i) / std::sqrt(squares / d + eps) * weight(0, i);
      answer.add(y, relative * std::abs(y) + half_min_subnormal(out));
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
