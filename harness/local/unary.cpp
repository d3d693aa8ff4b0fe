// SPDX-License-Identifier: Apache-2.0
// An activation on its own. GELU's 1 + tanh cancels for negative x, so its error is relative to x, not to y.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_unary(const LocalCall& call) {
  const F64Matrix& x = call.inputs[0];
  const auto kind = static_cast<int>(call.attribute("kind"));
  const bool gelu = kind == static_cast<int>(UnaryKind::gelu_tanh);
  LocalValue value;
  if (!gelu && kind != static_cast<int>(UnaryKind::silu)) {
    value.problem = fmt::format("unary kind {} has no f64 function", kind);
    return value;
  }
  value.y = gelu ? reference::gelu_tanh(x) : reference::silu(x);
  value.budget = F64Matrix(x.rows(), x.cols());
  const double u_out = call.out_roundoff();
  const double u_acc = call.accumulator_roundoff(Primitive::unary);
  const double lost = std::ldexp(1.0, info(accumulate_dtype(call.storage)).min_exponent);
  for (std::int64_t i = 0; i < x.rows() * x.cols(); ++i) {
    const double input = std::abs(x.data()[i]), result = std::abs(value.y.data()[i]);
    const double inner = 4.0 * u_acc * (gelu ? input : result) + lost * std::max(1.0, input);
    value.budget.data()[i] = u_out * result + inner + call.underflow();
  }
  return value;
}

}  // namespace shardcheck
