// SPDX-License-Identifier: Apache-2.0
// What is done with the logits of a vocabulary shard: argmax and softmax cross-entropy.
#include <algorithm>

#include "kernels/field/owned.hpp"
#include "kernels/field/primitives.hpp"

namespace shardcheck::field {

void argmax(const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index) {
  for (std::int64_t row = 0; row < x.rows; ++row) {
    Residue best;
    std::int64_t where = -1, local = 0;
    for (const auto& [begin, end] : owned) {
      for (std::int64_t global = begin; global < end; ++global, ++local) {
        const Residue candidate = element(x, row, local);
        if (where < 0 || candidate > best || (candidate == best && global < where)) {
          best = candidate;
          where = global;
        }
      }
    }
    element(value, row, 0) = best;
    *cpu::address_as<std::int64_t>(index, row, 0) = where;
  }
}

void cross_entropy_partial(const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                           Hash& exp, Inverter& invert, const CrossEntropyState& out) {
  for (std::int64_t row = 0; row < out.max.rows; ++row) {
    Residue max, sum;
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      max = std::max(max, element(logits, row, j));
      sum = sum + exp(element(logits, row, j));
    }
    const std::int64_t target = local_index(*cpu::address_as<const std::int64_t>(targets, 0, row),
                                            owned);
    element(out.max, row, 0) = max;
    element(out.sum, row, 0) = logits.cols == 0 ? Residue{} : sum * invert(exp(max));
    element(out.target, row, 0) = target >= 0 ? element(logits, row, target) : Residue{};
  }
}

void cross_entropy_merge(const CrossEntropyState& other, Hash& exp, Inverter& invert,
                         const CrossEntropyState& into) {
  for (std::int64_t row = 0; row < into.max.rows; ++row) {
    Residue &max = element(into.max, row, 0), &sum = element(into.sum, row, 0);
    const Residue their_max = element(other.max, row, 0), highest = std::max(max, their_max);
    sum = (sum * exp(max) + element(other.sum, row, 0) * exp(their_max)) * invert(exp(highest));
    element(into.target, row, 0) = element(into.target, row, 0) + element(other.target, row, 0);
    max = highest;
  }
}

void cross_entropy_finish(const CrossEntropyState& state, Hash& exp, Hash& log, const Tensor& loss) {
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    const Residue total = element(state.sum, row, 0) * exp(element(state.max, row, 0));
    element(loss, row, 0) = log(total) - element(state.target, row, 0);
  }
}

}  // namespace shardcheck::field
