// SPDX-License-Identifier: Apache-2.0
// What is done with the logits of a vocabulary shard: argmax and softmax cross-entropy.
#include <cmath>
#include <limits>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/exponential.hpp"
#include "kernels/cpu/lanes.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

std::int64_t global_column(std::int64_t column, OwnedRanges owned) {
  for (const auto& [begin, end] : owned) {
    if (column < end - begin) return begin + column;
    column -= end - begin;
  }
  return -1;
}

/// Local column of a global index, or -1.
std::int64_t local_column(std::int64_t index, OwnedRanges owned) {
  std::int64_t before = 0;
  for (const auto& [begin, end] : owned) {
    if (index >= begin && index < end) return before + index - begin;
    before += end - begin;
  }
  return -1;
}

template <typename A>
void argmax(const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index) {
  Scratch<A> scratch(x.cols);
  for (std::int64_t row = 0; row < x.rows; ++row) {
    const A* at = read(x, row, 0, x.cols, scratch.data());
    A best = -std::numeric_limits<A>::infinity();
    std::int64_t where = -1;
    for (std::int64_t j = 0; j < x.cols; ++j) {
      const std::int64_t global = global_column(j, owned);
      const bool nan = std::isnan(at[j]), best_nan = std::isnan(best);
      const bool larger = nan ? !best_nan : at[j] > best;
      const bool equal = nan ? best_nan : at[j] == best;
      if (larger || (equal && (where < 0 || global < where))) {
        best = at[j];
        where = global;
      }
    }
    *address_as<A>(value, row, 0) = best;
    *address_as<std::int64_t>(index, row, 0) = where;
  }
}

template <typename A>
void partial(const Tensor& logits, const Tensor& targets, OwnedRanges owned, const CrossEntropyState& out) {
  constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();
  Scratch<A> scratch(logits.cols), weights(logits.cols);
  for (std::int64_t row = 0; row < out.max.rows; ++row) {
    const A* x = read(logits, row, 0, logits.cols, scratch.data());
    A max = kMinusInfinity;
    for (std::int64_t j = 0; j < logits.cols; ++j) max = x[j] > max ? x[j] : max;
    const A shift = max == kMinusInfinity ? A{0} : max;  // exp(-inf - 0) is 0, where -inf - -inf were NaN
    map_lanes(x, logits.cols, weights.data(), [shift](const Vector<A>& v) { return exponential(v - shift); });
    const std::int64_t target = local_column(*address_as<const std::int64_t>(targets, 0, row), owned);
    *address_as<A>(out.max, row, 0) = max;
    *address_as<A>(out.sum, row, 0) = sum_over(weights.data(), logits.cols, [](const Vector<A>& v) { return v; });
    *address_as<A>(out.target, row, 0) = target >= 0 ? x[target] : A{0};
  }
}

template <typename A>
void merge(const CrossEntropyState& other, const CrossEntropyState& into) {
  for (std::int64_t row = 0; row < into.max.rows; ++row) {
    A& max = *address_as<A>(into.max, row, 0);
    const A theirs = *address_as<const A>(other.max, row, 0);
    const A highest = max >= theirs ? max : theirs;
    A& sum = *address_as<A>(into.sum, row, 0);
    sum = sum * exp_diff(max, highest) + *address_as<const A>(other.sum, row, 0) * exp_diff(theirs, highest);
    *address_as<A>(into.target, row, 0) += *address_as<const A>(other.target, row, 0);
    max = highest;
  }
}

template <typename A>
void finish(const CrossEntropyState& state, const Tensor& loss) {
  for (std::int64_t row = 0; row < loss.rows; ++row) {
    *address_as<A>(loss, row, 0) = std::log(*address_as<const A>(state.sum, row, 0)) +
                                   *address_as<const A>(state.max, row, 0) -
                                   *address_as<const A>(state.target, row, 0);
  }
}

}  // namespace

void argmax(const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index) {
  with_compute_type(x.dtype, [&](auto type) { argmax<decltype(type)>(x, owned, value, index); });
}

void cross_entropy_partial(const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                           const CrossEntropyState& out) {
  with_compute_type(logits.dtype, [&](auto type) { partial<decltype(type)>(logits, targets, owned, out); });
}

void cross_entropy_merge(const CrossEntropyState& other, const CrossEntropyState& into) {
  with_compute_type(into.max.dtype, [&](auto type) { merge<decltype(type)>(other, into); });
}

void cross_entropy_finish(const CrossEntropyState& state, const Tensor& loss) {
  with_compute_type(loss.dtype, [&](auto type) { finish<decltype(type)>(state, loss); });
}

}  // namespace shardcheck::cpu
