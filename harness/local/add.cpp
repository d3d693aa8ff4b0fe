// SPDX-License-Identifier: Apache-2.0
// y = a + b, the residual stream: one rounding.
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_add(const LocalCall& call) {
  LocalValue value;
  value.y = reference::add(call.inputs[0], call.inputs[1]);
  value.budget = F64Matrix(value.y.rows(), value.y.cols());
  const double u = call.out_roundoff();
  for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i) {
    value.budget.data()[i] = u * std::abs(value.y.data()[i]) + call.underflow();
  }
  return value;
}

}  // namespace shardcheck
