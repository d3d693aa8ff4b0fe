// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// x sigmoid(x).
inline double silu(double x) { return x / (1 + std::exp(-x)); }

/// x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline double gelu_tanh(double x) {
  const double slope = std::sqrt(2 / std::numbers::pi);
  return 0.5 * x * (1 + std::tanh(slope * (x + 0.044715 * x * x * x)));
}

/// y = f(x).                                                                                       x, answer [M, D]
///
/// b = u_out |y| + 4 u_acc |y| for silu, 4 u_acc |x| for gelu (whose argument's error grows with it), + half an ulp of
/// underflow + min_normal max(1, |x|) where e^-|x| vanishes.
inline Answer unary(UnaryKind kind, const Matrix& x, DType out, const Arithmetic& arithmetic) {
  const bool gelu = kind == UnaryKind::gelu_tanh;
  Answer answer;
  for (const double v : x.values) {
    const double y = gelu ? gelu_tanh(v) : silu(v);
    const double inner = 4 * accumulator_roundoff(arithmetic) * std::abs(gelu ? v : y);
    const double lost = smallest_normal(arithmetic) * std::max(1.0, std::abs(v));
    answer.add(y, unit_roundoff(out) * std::abs(y) + inner + lost + half_min_subnormal(out));
  }
  return answer;
}

/// y = silu(gate) up.                                                                        gate, up, answer [M, D]
///
/// b = (u_out + 4 u_acc) |y| + min_normal |up| max(1, |gate|) + half an ulp of underflow.
inline Answer gate(const Matrix& gate, const Matrix& up, DType out, const Arithmetic& arithmetic) {
  Answer answer;
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    const double g = gate.values[i], u = up.values[i], y = silu(g) * u;
    const double lost = smallest_normal(arithmetic) * std::max(1.0, std::abs(g)) * std::abs(u);
    answer.add(y, (unit_roundoff(out) + 4 * accumulator_roundoff(arithmetic)) * std::abs(y) + lost +
                      half_min_subnormal(out));
  }
  return answer;
}

}  // namespace shardcheck::twin
