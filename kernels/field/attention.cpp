// SPDX-License-Identifier: Apache-2.0
// Attention over one stretch of keys, the way a textbook writes it: field runs are small, and exact in any order.
#include <algorithm>
#include <vector>

#include "kernels/field/primitives.hpp"

namespace shardcheck::field {

void attention_partial(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                       const AttentionShape& shape, Residue scale, Hash& exp, Inverter& invert,
                       const AttentionState& out) {
  const std::int64_t d = shape.head_dim;
  std::vector<Residue> weights(static_cast<std::size_t>(k.rows));
  for (std::int64_t i = 0; i < q.rows; ++i) {
    const std::int64_t position = shape.q_first + i - shape.k_first;  // in rows of k
    const std::int64_t begin = shape.window > 0
                                   ? std::max<std::int64_t>(0, position - shape.window + 1)
                                   : 0;
    const std::int64_t end = std::min(position + 1, k.rows);
    for (std::int64_t head = 0; head < std::ssize(heads); ++head) {
      const std::int64_t kv = heads[static_cast<std::size_t>(head)] * d;
      Residue max, sum;
      for (std::int64_t j = begin; j < end; ++j) {
        Residue score;
        for (std::int64_t c = 0; c < d; ++c)
          score = score + element(q, i, head * d + c) * element(k, j, kv + c);
        score = score * scale;
        max = std::max(max, score);
        weights[static_cast<std::size_t>(j)] = exp(score);
      }
      const Residue shift = begin < end ? invert(exp(max)) : Residue{};
      for (std::int64_t j = begin; j < end; ++j) {
        Residue& weight = weights[static_cast<std::size_t>(j)];
        weight = weight * shift;
        sum = sum + weight;
      }
      element(out.max, i, head) = max;
      element(out.sum, i, head) = sum;
      for (std::int64_t c = 0; c < d; ++c) {
        Residue acc;
        for (std::int64_t j = begin; j < end; ++j)
          acc = acc + weights[static_cast<std::size_t>(j)] * element(v, j, kv + c);
        element(out.acc, i, head * d + c) = acc;
      }
    }
  }
}

void attention_merge(const AttentionState& other, Hash& exp, Inverter& invert,
                     const AttentionState& into) {
  const std::int64_t head_dim = into.acc.cols / into.max.cols;
  for (std::int64_t row = 0; row < into.max.rows; ++row) {
    for (std::int64_t head = 0; head < into.max.cols; ++head) {
      Residue &max = element(into.max, row, head), &sum = element(into.sum, row, head);
      const Residue their_max = element(other.max, row, head), highest = std::max(max, their_max);
      const Residue shift = invert(exp(highest));
      const Residue ours = exp(max) * shift, theirs = exp(their_max) * shift;
      max = highest;
      sum = sum * ours + element(other.sum, row, head) * theirs;
      for (std::int64_t c = head * head_dim; c < (head + 1) * head_dim; ++c) {
        element(into.acc, row, c) = element(into.acc, row, c) * ours +
                                    element(other.acc, row, c) * theirs;
      }
    }
  }
}

void attention_finish(const AttentionState& state, std::int64_t head_dim, Inverter& invert,
                      const Tensor& out) {
  for (std::int64_t row = 0; row < out.rows; ++row) {
    for (std::int64_t head = 0; head < state.max.cols; ++head) {
      const Residue share = invert(element(state.sum, row, head));
      for (std::int64_t c = head * head_dim; c < (head + 1) * head_dim; ++c)
        element(out, row, c) = element(state.acc, row, c) * share;
    }
  }
}

}  // namespace shardcheck::field
