// SPDX-License-Identifier: Apache-2.0
// What both attention kernels share: which keys a query sees, and rows of work: (query, q head) pairs of the q heads
// that one kv head serves, so that those heads read each key once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "kernels/device.hpp"

namespace shardcheck::gpu {

template <typename A>
inline constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();

/// exp(a - b), and 0 where both are -inf: an empty softmax adds nothing.
template <typename A>
__device__ inline A exp_diff(A a, A b) {
  return a == kMinusInfinity<A> && b == kMinusInfinity<A> ? A{0} : std::exp(a - b);
}

/// The larger of two; a NaN on the right is passed over (its exponential carries it on).
template <typename A>
__device__ inline A larger(A a, A b) {
  return b > a ? b : a;
}

/// Keys [begin, end) of a stretch; begin >= end is none.
struct KeyRange {
  std::int64_t begin, end;
};

/// Which of a stretch's keys a query sees: causal by position, within a window.
struct Sight {
  std::int64_t position = 0;  // of query 0, counted from the stretch's first key
  std::int64_t window = 0;    // 0: all
  std::int64_t keys = 0;

  /// Both ends rise with the query.
  __device__ KeyRange seen(std::int64_t query) const {
    const std::int64_t at = position + query;
    const std::int64_t begin = window > 0 ? at - window + 1 : 0;
    return {begin > 0 ? begin : 0, at < keys ? at + 1 : keys};
  }
};

/// x - first, held between 0 and most.
__device__ inline int offset_within(std::int64_t x, std::int64_t first, int most) {
  const std::int64_t offset = x - first;
  return offset < 0 ? 0 : offset > most ? most : static_cast<int>(offset);
}

/// The q heads of one launch, by the kv head that serves them.
struct HeadGroups {
  static constexpr int kMostHeads = 128;
  std::int32_t q_head[kMostHeads] = {};
  std::int32_t first[kMostHeads + 1] = {};  // group g serves q_head[first[g]] up to q_head[first[g + 1] - 1]
  std::int32_t kv_head[kMostHeads] = {};
  std::int32_t groups = 0;
  std::int32_t largest = 0;  // heads in the largest group

  __device__ int heads(int group) const { return first[group + 1] - first[group]; }
  /// For emu: there are none.
  template <typename Visit>
  void for_each_view(Visit) const {}
};

/// Any head list as launches of at most kMostHeads heads; within a group in rising order.
inline std::vector<HeadGroups> grouped(HeadMap heads) {
  std::vector<std::int32_t> order(heads.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kv_head = [&](std::int32_t head) { return heads[static_cast<std::size_t>(head)]; };
  std::ranges::stable_sort(order, {}, kv_head);
  std::vector<HeadGroups> launches;
  int filled = HeadGroups::kMostHeads;
  for (const std::int32_t head : order) {
    if (filled == HeadGroups::kMostHeads) {
      launches.emplace_back();
      filled = 0;
    }
    HeadGroups& to = launches.back();
    if (to.groups == 0 || to.kv_head[to.groups - 1] != kv_head(head)) {
      to.kv_head[to.groups] = kv_head(head);
      to.first[to.groups++] = filled;
    }
    to.q_head[filled++] = head;
    to.first[to.groups] = filled;
    to.largest = std::max(to.largest, filled - to.first[to.groups - 1]);
  }
  return launches;
}

/// Everything a launch of either kernel is about. Rows of max, sum and acc: the queries, `splits` times over.
template <typename T>
struct AttentionOperands {
  using A = Accumulate<T>;
  View<const T> q, k, v;  // q [M, heads * head_dim]   k, v [N, kv_heads * head_dim]
  View<A> max, sum, acc;  // [splits * M, heads], [.., heads], [.., heads * head_dim]
  Sight sight;
  A scale;
  int head_dim;
};

}  // namespace shardcheck::gpu
