// SPDX-License-Identifier: Apache-2.0
// y = x / sqrt(mean(x^2) + eps) w. The mean of D squares is off by about sqrt(D)/2 roundings, relative; the root,
// the division and the two products add a few more, independent of the scale of x.
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_rms_norm(const LocalCall& call) {
  const std::vector<double> weight = call.weights.vector(call.instruction.module + ".weight");
  LocalValue value;
  value.y = reference::rms_norm<double>(call.inputs[0], weight, call.attribute("eps"));
  value.budget = F64Matrix(value.y.rows(), value.y.cols());
  const double statistic = std::sqrt(static_cast<double>(value.y.cols())) / 2.0 + 4.0;
  const double u = call.out_roundoff() + statistic * call.accumulator_roundoff(Primitive::rms_norm);
  for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i) {
    value.budget.data()[i] = u * std::abs(value.y.data()[i]) + call.underflow();
  }
  return value;
}

}  // namespace shardcheck
