// SPDX-License-Identifier: Apache-2.0
// y = (x - mean) / sd g + beta. Where the mean is large against the deviation, x - mean cancels: the error of the mean,
// which is relative to rms(x), is then what counts.
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_layer_norm(const LocalCall& call) {
  const std::vector<double> gain = call.weights.vector(call.instruction.module + ".weight");
  const std::vector<double> shift = call.weights.vector(call.instruction.module + ".bias");
  const F64Matrix& x = call.inputs[0];
  const double eps = call.attribute("eps");
  LocalValue value;
  value.y = reference::layer_norm<double>(x, gain, shift, eps);
  value.budget = F64Matrix(x.rows(), x.cols());
  const double features = static_cast<double>(x.cols());
  const double statistic = std::sqrt(features) / 2.0 + 4.0;
  const double u_out = call.out_roundoff();
  const double u_acc = call.accumulator_roundoff(Primitive::layer_norm);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    double mean = 0.0, squares = 0.0, variance = 0.0;
    for (const double v : x.row(m)) {
      mean += v / features;
      squares += v * v / features;
    }
    for (const double v : x.row(m)) variance += (v - mean) * (v - mean) / features;
    const double deviation = std::sqrt(variance + eps), rms = std::sqrt(squares);
    for (std::int64_t d = 0; d < x.cols(); ++d) {
      const auto i = static_cast<std::size_t>(d);
      const double cancelled = rms + statistic * std::abs(x(m, d) - mean);
      value.budget(m, d) = u_out * std::abs(value.y(m, d)) + call.underflow() +
                           u_acc * (std::abs(gain[i]) / deviation * cancelled + std::abs(shift[i]));
    }
  }
  return value;
}

}  // namespace shardcheck
