// SPDX-License-Identifier: Apache-2.0
#include "harness/local/weights.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace shardcheck {
namespace {

// A 16-bit format by its significand bits (with the hidden one) and its smallest normal exponent. In the normal range
// the rounding is done on the bits; below it the format's numbers are the multiples of one power of two, and adding
// 1.5 * 2^52 of those makes the hardware round at exactly that multiple.
void round_16_bit(std::span<double> values, const DTypeInfo& format) {
  const int dropped = 53 - format.precision;
  const std::uint64_t half_below = (std::uint64_t{1} << (dropped - 1)) - 1;
  const std::uint64_t kept = ~((std::uint64_t{1} << dropped) - 1);
  const double min_normal = std::ldexp(1.0, format.min_exponent);
  const double anchor = std::ldexp(1.5, 52 + format.min_exponent - format.precision + 1);
  const double largest = format.max_finite;
  for (double& value : values) {
    const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t odd = (bits >> dropped) & 1u;
    const double normal = std::bit_cast<double>((bits + half_below + odd) & kept);
    const double subnormal = std::copysign((value + anchor) - anchor, value);
    double rounded = std::abs(value) < min_normal ? subnormal : normal;
    rounded = std::abs(rounded) > largest
                  ? std::copysign(std::numeric_limits<double>::infinity(), value)
                  : rounded;
    value = value == value ? rounded : value;
  }
}

}  // namespace

void round_in_place(std::span<double> values, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return;
    case DType::f32:
      for (double& value : values) value = static_cast<double>(static_cast<float>(value));
      return;
    default:
      round_16_bit(values, info(dtype));
  }
}

void RoundedWeights::read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                               std::span<double> out) const {
  model_.read_rows(tensor, begin, end, out);
  round_in_place(out, storage_);
}

std::vector<double> RoundedWeights::vector(std::string_view tensor) const {
  const Model::Extents extents = model_.extents(tensor);
  std::vector<double> values(static_cast<std::size_t>(extents.rows * extents.cols));
  read_rows(tensor, 0, extents.rows, values);
  return values;
}

}  // namespace shardcheck
