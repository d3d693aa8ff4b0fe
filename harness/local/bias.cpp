// SPDX-License-Identifier: Apache-2.0
// y = x + bias after a reduction. The f32 sum is rounded once to storage.
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_bias(const LocalCall& call) {
  const std::vector<double> bias = call.weights.vector(call.instruction.module + ".bias");
  LocalValue value;
  value.y = call.inputs[0];
  value.budget = F64Matrix(value.y.rows(), value.y.cols());
  const double u = call.out_roundoff();
  for (std::int64_t m = 0; m < value.y.rows(); ++m) {
    for (std::int64_t d = 0; d < value.y.cols(); ++d) {
      value.y(m, d) += bias[static_cast<std::size_t>(d)];
      value.budget(m, d) = u * std::abs(value.y(m, d)) + call.underflow();
    }
  }
  return value;
}

}  // namespace shardcheck
