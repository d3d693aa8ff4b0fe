// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// y = x W^T + bias.                                       x [M, K]  weight [N, K]  bias [1, N] or none  answer [M, N]
///
/// b = u_out |y| + sqrt(K) u_acc q + half an ulp of underflow, q = sqrt(sum_k (x_k w_k)^2); u_acc |y| more for a bias.
/// Tensor cores truncate their running sum once per block of products, always towards zero, and inside a block drop the
/// bits below their fraction: (K / block) 2^-F |y| + 2 2^-F sqrt(K) q more, F the fraction's bits.
inline Answer linear(const Matrix& x, const Matrix& weight, const Matrix* bias, DType out,
                     const Arithmetic& arithmetic) {
  const auto k = static_cast<double>(x.cols);
  double per_result = unit_roundoff(out),
         per_norm = std::sqrt(k) * unit_roundoff(arithmetic.accumulate);
  if (arithmetic.truncating) {
    const int fraction = arithmetic.fraction_bits - 1;
    per_result += k / std::max(arithmetic.block_k, 1) * std::ldexp(1.0, -std::min(fraction, 23));
    per_norm += 2 * std::ldexp(1.0, -fraction) * std::sqrt(k);
  }
  if (bias != nullptr) per_result += unit_roundoff(arithmetic.accumulate);
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t n = 0; n < weight.rows; ++n) {
      double y = 0, squares = 0;
      for (std::int64_t i = 0; i < x.cols; ++i) {
        const double product = x(m, i) * weight(n, i);
        y += product;
        squares += product * product;
      }
      if (bias != nullptr) y += (*bias)(0, n);
      answer.add(y, per_result * std::abs(y) + per_norm * std::sqrt(squares) + half_min_subnormal(out));
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
