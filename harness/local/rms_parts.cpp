// SPDX-License-Identifier: Apache-2.0
// RMSNorm in two ops: s = the sum of squares of the features that count on a rank, and y = x / sqrt(s / D + eps) w.
//
// All terms of s are positive, so a running sum may be as large as s at every one of its n roundings: their errors add
// up to sqrt(n) u_acc s, and the squares' own roundings and the sum's last one to less than u_acc s more. With s given,
// y is off by the roundings of a quotient, a sum, a root, its inverse and two products. Together they are rms_norm's
// budget, where s is under the root and its error counts half.
#include <cmath>

#include "harness/local/local_op.hpp"

namespace shardcheck {

LocalValue local_rms_statistic(const LocalCall& call) {
  const F64Matrix& x = call.inputs[0];
  const double u = call.accumulator_roundoff(Primitive::square_sum);
  const double relative = (std::sqrt(static_cast<double>(total(call.weight_rows))) + 1.0) * u;
  LocalValue value;
  value.y = F64Matrix(x.rows(), 1);
  value.budget = F64Matrix(x.rows(), 1);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    double squares = 0.0;
    for (const Range& range : call.weight_rows) {
      for (std::int64_t i = range.begin; i < range.end; ++i) squares += x(m, i) * x(m, i);
    }
    value.y(m, 0) = squares;
    value.budget(m, 0) = relative * squares + call.underflow();
  }
  return value;
}

LocalValue local_rms_apply(const LocalCall& call) {
  const F64Matrix& x = call.inputs[0];
  const std::vector<double> weight = call.weights.vector(call.instruction.module + ".weight");
  const double eps = call.attribute("eps"), features = static_cast<double>(x.cols());
  const double u = call.out_roundoff() + 4.0 * call.accumulator_roundoff(Primitive::rms_apply);
  LocalValue value;
  value.y = F64Matrix(x.rows(), x.cols());
  value.budget = F64Matrix(x.rows(), x.cols());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    const double scale = 1.0 / std::sqrt(call.inputs[1](m, 0) / features + eps);
    for (std::int64_t i = 0; i < x.cols(); ++i) {
      const double y = x(m, i) * scale * weight[static_cast<std::size_t>(i)];
      value.y(m, i) = y;
      value.budget(m, i) = u * std::abs(y) + call.underflow();
    }
  }
  return value;
}

}  // namespace shardcheck
