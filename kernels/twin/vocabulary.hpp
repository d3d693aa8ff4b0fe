// SPDX-License-Identifier: Apache-2.0
// Twins of what is done with logits: the largest one, and the softmax cross-entropy.
#pragma once

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

struct Argmax {
  double value = -std::numeric_limits<double>::infinity();
  std::int64_t index = -1;  // global column
};

/// Of one row: the lowest global column among the largest values, where NaN is larger than everything. Exact.
///                                                                                  logits [M, V_r]
inline Argmax argmax(const Matrix& logits, std::int64_t row, OwnedRanges owned) {
  Argmax best;
  std::int64_t local = 0;
  for (const auto& [begin, end] : owned) {
    for (std::int64_t global = begin; global < end; ++global, ++local) {
      const double x = logits(row, local);
      const bool both_nan = std::isnan(x) && std::isnan(best.value);
      const bool larger = std::isnan(x) ? !std::isnan(best.value) : x > best.value;
      const bool equal = both_nan || x == best.value;
      if (larger || (equal && (best.index < 0 || global < best.index))) best = {x, global};
    }
  }
  return best;
}

/// loss_m = log sum_j exp(x_j) - x_target, over the whole vocabulary of V.         logits [M, V]  answer [M, 1]
///
/// With p the softmax and m the largest logit, b = u_acc (sqrt(V) + 4 + sum_j p_j |x_j - m| + |log sum| + |lse| +
/// |loss|): the sum, the exponentials, their arguments, and one rounding each for the logarithm, the maximum and the
/// target.
inline Answer cross_entropy(const Matrix& logits, const std::vector<std::int64_t>& targets,
                            const Arithmetic& arithmetic) {
  const double u_acc = accumulator_roundoff(arithmetic);
  Answer answer;
  for (std::int64_t row = 0; row < logits.rows; ++row) {
    double max = -std::numeric_limits<double>::infinity(), sum = 0, shifted = 0;
    for (std::int64_t j = 0; j < logits.cols; ++j) max = std::max(max, logits(row, j));
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      const double weight = std::exp(logits(row, j) - max);
      sum += weight;
      if (weight > 0) shifted += weight * (max - logits(row, j));
    }
    const double lse = std::log(sum) + max,
                 loss = lse - logits(row, targets[static_cast<std::size_t>(row)]);
    answer.add(loss, u_acc * (std::sqrt(static_cast<double>(logits.cols)) + 4 + shifted / sum +
                              std::abs(std::log(sum)) + std::abs(lse) + std::abs(loss)));
  }
  return answer;
}

}  // namespace shardcheck::twin
