// SPDX-License-Identifier: Apache-2.0
// Half-split rotation of every head's pairs (a, b). Two products and a sum, each rounded, and the table's own rounding;
// besides, two correct f64 formulas for the frequencies differ, and the angle multiplies that by the position.
#include <cmath>

#include "harness/local/local_op.hpp"
#include "reference/blocks.hpp"

namespace shardcheck {

LocalValue local_rope(const LocalCall& call) {
  const F64Matrix& x = call.inputs[0];
  const auto head_dim = static_cast<std::int64_t>(call.attribute("head_dim"));
  const std::vector<double> frequencies = reference::rope_frequencies(call.config.rope, head_dim);
  const std::vector<std::int64_t> positions = call.positions();
  LocalValue value;
  value.y = reference::rope<double>(x, positions, frequencies);
  value.budget = F64Matrix(x.rows(), x.cols());
  const double u_out = call.out_roundoff();
  const double u_acc = call.accumulator_roundoff(Primitive::rope);
  const std::int64_t half = head_dim / 2;
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    const auto position = static_cast<double>(positions[static_cast<std::size_t>(m)]);
    for (std::int64_t head = 0; head < x.cols(); head += head_dim) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = position * frequencies[static_cast<std::size_t>(i)];
        const double pair = std::abs(x(m, head + i)) + std::abs(x(m, head + i + half));
        const double rotation = (2.0 * u_acc + 0x1p-52 * std::abs(angle)) * pair + call.underflow();
        for (const std::int64_t at : {head + i, head + i + half}) {
          value.budget(m, at) = u_out * std::abs(value.y(m, at)) + rotation;
        }
      }
    }
  }
  return value;
}

}  // namespace shardcheck
