// SPDX-License-Identifier: Apache-2.0
// y = silu(gate) up. e^-x, the quotient and the product round; where the sigmoid is below the accumulator's normal
// numbers it may be lost, and what is lost is multiplied by the other factors.
#include <algorithm>
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_gate(const LocalCall& call) {
  const F64Matrix& gate = call.inputs[0];
  const F64Matrix& up = call.inputs[1];
  LocalValue value;
  value.y = reference::multiply(reference::silu(gate), up);
  value.budget = F64Matrix(gate.rows(), gate.cols());
  const double u = call.out_roundoff() + 4.0 * call.accumulator_roundoff(Primitive::gate);
  const double lost = std::ldexp(1.0, info(accumulate_dtype(call.storage)).min_exponent);
  for (std::int64_t i = 0; i < gate.rows() * gate.cols(); ++i) {
    const double other = std::max(1.0, std::abs(gate.data()[i])) * std::abs(up.data()[i]);
    value.budget.data()[i] = u * std::abs(value.y.data()[i]) + lost * other + call.underflow();
  }
  return value;
}

}  // namespace shardcheck
