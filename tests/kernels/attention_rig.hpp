// SPDX-License-Identifier: Apache-2.0
// What the tests of attention share: a stretch of keys with its queries, and the calls that lead to an output.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/twin/attention.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct AttentionCase {
  std::int64_t queries, keys, head_dim;
  std::vector<std::int32_t> heads;  // kv head of each q head
  std::int64_t kv_heads;
  AttentionShape shape;
};

inline AttentionCase make_case(std::int64_t queries, std::int64_t keys, std::int64_t head_dim,
                               std::vector<std::int32_t> heads, std::int64_t q_first,
                               std::int64_t window = 0, std::int64_t k_first = 0) {
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const std::int64_t kv_heads = *std::ranges::max_element(heads) + 1;
  return {
      queries,
      keys,
      head_dim,
      std::move(heads),
      kv_heads,
      {.head_dim = head_dim, .scale = scale, .q_first = q_first, .k_first = k_first, .window = window}};
}

/// Parametrised by the storage dtype.
class AttentionTest : public testing::TestWithParam<DType> {
 protected:
  AttentionState make_state(std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                            Layout layout = Layout::dense) {
    const DType acc = accumulate_dtype(GetParam());
    return {.max = rig_.make(acc, rows, heads, layout),
            .sum = rig_.make(acc, rows, heads, layout),
            .acc = rig_.make(acc, rows, heads * head_dim, layout)};
  }

  AttentionState partial(const AttentionCase& c, const Tensor& q, const Tensor& k, const Tensor& v,
                         Layout layout = Layout::dense) {
    const auto heads = static_cast<std::int64_t>(c.heads.size());
    AttentionState state = make_state(q.rows, heads, c.head_dim, layout);
    rig_.device().attention_partial(rig_.stream(), q, k, v, c.heads, c.shape, state);
    return state;
  }

  HostTensor finish(const AttentionState& state, std::int64_t head_dim, Layout layout = Layout::dense) {
    const Tensor out = rig_.make(GetParam(), state.acc.rows, state.acc.cols, layout);
    rig_.device().attention_finish(rig_.stream(), state, head_dim, out);
    return rig_.get(out);
  }

  HostTensor whole(const AttentionCase& c, const Tensor& q, const Tensor& k, const Tensor& v) {
    return finish(partial(c, q, k, v), c.head_dim);
  }

  twin::Answer want(const AttentionCase& c, const Matrix& q, const Matrix& k, const Matrix& v) {
    return twin::attention(q, k, v, c.heads, c.shape, GetParam(),
                           rig_.arithmetic(Primitive::attention, GetParam()));
  }

  Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return random_matrix(GetParam(), rows, cols, seed);
  }
  Matrix queries(const AttentionCase& c) {
    return random(c.queries, std::ssize(c.heads) * c.head_dim, 1);
  }
  Matrix keys(const AttentionCase& c) { return random(c.keys, c.kv_heads * c.head_dim, 2); }
  Matrix values(const AttentionCase& c) { return random(c.keys, c.kv_heads * c.head_dim, 3); }

  DeviceRig rig_;
};

}  // namespace shardcheck
