// SPDX-License-Identifier: Apache-2.0
// Sums over ranks in the order that a ReduceSpec names. Exact: a device must have their bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/reduction.hpp"
#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// One addition in the type that a wire dtype is accumulated in.
inline double accumulated(DType wire, double a, double b) {
  return wire == DType::f64 ? a + b
                            : static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
}

/// [lo, hi) splits at lo + the largest power of two below hi - lo.
inline double tree_sum(DType wire, std::span<const double> x) {
  if (x.size() == 1) return x[0];
  std::size_t half = 1;
  while (half * 2 < x.size()) half *= 2;
  return accumulated(wire, tree_sum(wire, x.first(half)), tree_sum(wire, x.subspan(half)));
}

/// The result at flat element `index` of a tensor of `total`, x one term of each rank.
inline double reduce_n(std::span<const double> x, const ReduceSpec& spec, DType wire,
                       std::int64_t index, std::int64_t total) {
  const auto ranks = static_cast<std::int64_t>(x.size());
  if (std::ranges::any_of(x, [](double term) { return std::isnan(term); })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (spec.op == ReduceOp::max) return *std::ranges::max_element(x);
  if (spec.order == ReduceOrder::fixed_tree) return rounded(wire, tree_sum(wire, x));
  std::vector<double> ordered(x.begin(), x.end());
  if (spec.order == ReduceOrder::ring) {
    // Chunks of ceil(total / P) elements, rounded up to 16 bytes; chunk c starts with rank c + 1.
    std::int64_t chunk = (total + ranks - 1) / ranks;
    while (chunk * static_cast<std::int64_t>(element_size(wire)) % 16 != 0) ++chunk;
    std::ranges::rotate(ordered, ordered.begin() + (index / chunk + 1) % ranks);
  } else if (spec.order == ReduceOrder::tree) {
    std::ranges::reverse(ordered);
  }
  double sum = ordered[0];
  for (const double term : std::span(ordered).subspan(1)) {
    sum = accumulated(wire, sum, term);
    if (rounds_every_hop(spec)) sum = rounded(wire, sum);
  }
  return rounded(wire, sum);
}

}  // namespace shardcheck::twin
