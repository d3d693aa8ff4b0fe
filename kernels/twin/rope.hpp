// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// Every pair (a, b) of a head becomes (a cos - b sin, b cos + a sin). Pair i of a head of d is (i, i + d/2) or
/// (2i, 2i + 1).                                          x, answer [M, heads * d]  cos, sin [M, d / 2]
/// b = u_out |y| + 2 u_acc (|a cos| + |b sin|) + half an ulp of underflow: the difference may cancel.
inline Answer rope(const Matrix& x, const Matrix& cos, const Matrix& sin, RopeConvention convention,
                   DType out, const Arithmetic& arithmetic) {
  const double u_acc = accumulator_roundoff(arithmetic);
  const std::int64_t half = cos.cols, d = 2 * half;
  Answer answer;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const std::int64_t in_head = i % d, head = i - in_head;
      const bool split = convention == RopeConvention::half_split;
      const std::int64_t pair = split ? in_head % half : in_head / 2;
      const bool second = split ? in_head >= half : in_head % 2 == 1;
      const std::int64_t partner = head + (split ? pair + (second ? 0 : half)
                                                 : 2 * pair + (second ? 0 : 1));
      const double own = x(m, i) * cos(m, pair), others = x(m, partner) * sin(m, pair);
      const double y = second ? own + others : own - others;
      answer.add(y, unit_roundoff(out) * std::abs(y) +
                        2 * u_acc * (std::abs(own) + std::abs(others)) + half_min_subnormal(out));
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
