// SPDX-License-Identifier: Apache-2.0
// RMSNorm of every head by itself: the budget of rms_norm, for a mean of head_dim squares.
#include <fmt/format.h>

#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_head_norm(const LocalCall& call) {
  const std::vector<double> weight = call.weights.vector(call.instruction.module + ".weight");
  const auto head_dim = static_cast<std::int64_t>(weight.size());
  const F64Matrix& x = call.inputs[0];
  LocalValue value;
  if (x.cols() % head_dim != 0) {
    value.problem = fmt::format("{} features are no whole number of heads of {}", x.cols(), head_dim);
    return value;
  }
  value.y = reference::head_norm<double>(x, weight, call.attribute("eps"));
  value.budget = F64Matrix(x.rows(), x.cols());
  const double statistic = std::sqrt(static_cast<double>(head_dim)) / 2.0 + 4.0;
  const double u = call.out_roundoff() + statistic * call.accumulator_roundoff(Primitive::rms_norm);
  for (std::int64_t i = 0; i < x.rows() * x.cols(); ++i) {
    value.budget.data()[i] = u * std::abs(value.y.data()[i]) + call.underflow();
  }
  return value;
}

}  // namespace shardcheck
