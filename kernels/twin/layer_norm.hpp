// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// y_i = (x_i - mean) / sd w_i + beta_i, sd = sqrt(var + eps), over the D columns.
///                                                                           x, answer [M, D]  weight, bias [1, D]
/// b = u_out |y| + u_acc (|w| / sd (rms(x) + (sqrt(D) / 2 + 4) |x - mean|) + |beta|) + half an ulp of underflow: the
/// mean is off by about u_acc rms(x), which doesn't shrink with x - mean.
inline Answer layer_norm(const Matrix& x, const Matrix& weight, const Matrix& bias, double eps,
                         DType out, const Arithmetic& arithmetic) {
  const double u_acc = accumulator_roundoff(arithmetic);
  const auto d = static_cast<double>(x.cols);
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    double sum = 0, squares = 0, centred = 0;
    for (std::int64_t i = 0; i < x.cols; ++i) sum += x(m, i), squares += x(m, i) * x(m, i);
    const double mean = sum / d;
    for (std::int64_t i = 0; i < x.cols; ++i) centred += (x(m, i) - mean) * (x(m, i) - mean);
    const double sd = std::sqrt(centred / d + eps);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const double y = (x(m, i) - mean) / sd * weight(0, i) + bias(0, i);
      const double spread = std::sqrt(squares / d) + (std::sqrt(d) / 2 + 4) * std::abs(x(m, i) - mean);
      const double inner = u_acc * (std::abs(weight(0, i)) / sd * spread + std::abs(bias(0, i)));
      answer.add(y, unit_roundoff(out) * std::abs(y) + inner + half_min_subnormal(out));
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
