// SPDX-License-Identifier: Apache-2.0
// Attention over one stretch of keys, tile by tile: scores of kQueries queries against kKeys keys at a time, the
// running maximum, sum and accumulator being kept in the state. A query's bits depend on its own row and on the keys
// that it sees, counted from the stretch's start, and not on the other queries.
#include <algorithm>
#include <limits>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/exponential.hpp"
#include "kernels/cpu/lanes.hpp"
#include "kernels/cpu/primitives.hpp"
#include "kernels/cpu/product.hpp"

namespace shardcheck::cpu {
namespace {

constexpr std::int64_t kQueries = 32;
constexpr std::int64_t kKeys = 256;

template <typename A>
constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();

template <typename A>
std::int64_t whole_lanes(std::int64_t n) {
  return (n + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
}

/// Columns [col, col + n) of rows [row, row + rows) as A: in place where they already are, else a zero-padded copy.
template <typename A>
Rows<A> widen(const Tensor& t, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t n, bool padded,
              Scratch<A>& scratch) {
  const std::int64_t width = whole_lanes<A>(n);
  if (t.dtype == kComputeDType<A> && t.col_stride == 1 && (!padded || width == n)) {
    return {address_as<const A>(t, row, col), t.row_stride};
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    A* copy = scratch.data() + i * width;
    load(t, row + i, col, n, copy);
    std::fill(copy + n, copy + width, A{0});
  }
  return {scratch.data(), width};
}

/// sums[r, c] += sum over keys [begin, end) of weights[r, key] v[key, c], key by key, for kR rows and kC vectors.
template <int kR, int kC, typename A>
void weigh_tile(const A* weights, std::int64_t weights_stride, Rows<A> v, std::int64_t begin, std::int64_t end,
                A* sums, std::int64_t sums_stride) {
  Vector<A> sum[kR * kC];
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) sum[r * kC + c] = load_lanes(sums + r * sums_stride + c * kLanes<A>);
  }
  for (std::int64_t key = begin; key < end; ++key) {
    Vector<A> value[kC];
#pragma GCC unroll 8
    for (int c = 0; c < kC; ++c) value[c] = load_lanes(v.row(key) + c * kLanes<A>);
#pragma GCC unroll 4
    for (int r = 0; r < kR; ++r) {
      const Vector<A> weight = broadcast(weights[r * weights_stride + key]);
#pragma GCC unroll 8
      for (int c = 0; c < kC; ++c) sum[r * kC + c] = multiply_add(weight, value[c], sum[r * kC + c]);
    }
  }
  for (int r = 0; r < kR; ++r) {
    for (int c = 0; c < kC; ++c) store_lanes(sums + r * sums_stride + c * kLanes<A>, sum[r * kC + c]);
  }
}

template <int kR, int kC, typename A>
void weigh(const A* weights, std::int64_t weights_stride, Rows<A> v, std::int64_t begin, std::int64_t end,
           std::int64_t width, A* sums) {
  if (begin >= end) return;
  std::int64_t c = 0;
  for (; c + kC * kLanes<A> <= width; c += kC * kLanes<A>) {
    weigh_tile<kR, kC>(weights, weights_stride, Rows<A>{v.data + c, v.stride}, begin, end, sums + c, width);
  }
  for (; c < width; c += kLanes<A>) {
    weigh_tile<kR, 1>(weights, weights_stride, Rows<A>{v.data + c, v.stride}, begin, end, sums + c, width);
  }
}

struct KeyRange {
  std::int64_t begin, end;
};

template <typename A>
class Attention {
 public:
  Attention(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads, const AttentionShape& shape,
            const AttentionState& state)
      : q_(q), k_(k), v_(v), heads_(heads), shape_(shape), state_(state), d_(shape.head_dim),
        width_(whole_lanes<A>(d_)), scale_(static_cast<A>(shape.scale)), q_copy_(kQueries * width_),
        k_copy_(kKeys * width_), v_copy_(kKeys * width_), scores_(kQueries * kKeys), sums_(kQueries * width_) {}

  void run() {
    clear();
    for (std::int64_t first = 0; first < k_.rows; first += kKeys) {
      const KeyRange block{first, std::min(first + kKeys, k_.rows)};
      const KeyRange rows = queries_that_see(block);
      if (rows.begin >= rows.end) continue;
      std::int32_t kv_head = -1;
      Rows<A> k{}, v{};
      for (std::int64_t head = 0; head < std::ssize(heads_); ++head) {
        if (heads_[static_cast<std::size_t>(head)] != kv_head) {
          kv_head = heads_[static_cast<std::size_t>(head)];
          k = widen(k_, first, block.end - first, kv_head * d_, d_, false, k_copy_);
          v = widen(v_, first, block.end - first, kv_head * d_, d_, true, v_copy_);
        }
        for (std::int64_t row = rows.begin; row < rows.end; row += kQueries) {
          tile(head, row, std::min(kQueries, rows.end - row), block, k, v);
        }
      }
    }
  }

 private:
  void clear() {
    for (std::int64_t i = 0; i < q_.rows; ++i) {
      for (std::int64_t head = 0; head < std::ssize(heads_); ++head) {
        *address_as<A>(state_.max, i, head) = kMinusInfinity<A>;
        *address_as<A>(state_.sum, i, head) = A{0};
      }
      for (std::int64_t c = 0; c < q_.cols; ++c) *address_as<A>(state_.acc, i, c) = A{0};
    }
  }

  /// The keys of `block` that query row i sees, from the block's start. Both ends rise with i.
  KeyRange seen(std::int64_t i, KeyRange block) const {
    const std::int64_t position = shape_.q_first + i - shape_.k_first;  // in rows of k
    const std::int64_t begin = shape_.window > 0 ? position - shape_.window + 1 : 0;
    return {std::max(begin, block.begin) - block.begin, std::min(position + 1, block.end) - block.begin};
  }

  KeyRange queries_that_see(KeyRange block) const {
    KeyRange rows{0, q_.rows};
    const auto blind = [&](std::int64_t i) { return seen(i, block).begin >= seen(i, block).end; };
    while (rows.begin < rows.end && blind(rows.begin)) ++rows.begin;
    while (rows.begin < rows.end && blind(rows.end - 1)) --rows.end;
    return rows;
  }

  /// Queries [row, row + rows) of one head against the keys of one block.
  void tile(std::int64_t head, std::int64_t row, std::int64_t rows, KeyRange block, Rows<A> k, Rows<A> v) {
    const Rows<A> q = widen(q_, row, rows, head * d_, d_, false, q_copy_);
    const std::int64_t keys = seen(row + rows - 1, block).end;  // later ones no query of the tile sees
    std::fill_n(scores_.data(), rows * kKeys, A{0});
    for (std::int64_t c = 0; c < d_; c += kDepth<A>) {
      product_block(Rows<A>{q.data + c, q.stride}, rows, Rows<A>{k.data + c, k.stride}, keys,
                    std::min(kDepth<A>, d_ - c), scores_.data(), kKeys);
    }
    KeyRange range[kQueries];
    A factor[kQueries];
    for (std::int64_t i = 0; i < rows; ++i) {
      range[i] = seen(row + i, block);
      factor[i] = exponentiate(scores_.data() + i * kKeys, range[i], *address_as<A>(state_.max, row + i, head),
                               *address_as<A>(state_.sum, row + i, head));
    }
    std::fill_n(sums_.data(), rows * width_, A{0});
    weigh_all(rows, range, v);
    for (std::int64_t i = 0; i < rows; ++i) accumulate(row + i, head, factor[i], sums_.data() + i * width_);
  }

  /// Scores become exp(score - new maximum); returns what earlier sums and accumulators are multiplied by.
  A exponentiate(A* scores, KeyRange range, A& running_max, A& running_sum) const {
    const std::int64_t n = range.end - range.begin;
    if (n <= 0) return A{1};
    A* s = scores + range.begin;
    for (std::int64_t j = 0; j < n; ++j) s[j] *= scale_;
    const A highest = std::max(running_max, maximum(s, n));
    const A factor = exp_diff(running_max, highest);
    if (highest == kMinusInfinity<A>) {
      for (std::int64_t j = 0; j < n; ++j) s[j] = exp_diff(s[j], highest);
    } else {
      map_lanes(s, n, s, [highest](const Vector<A>& x) { return exponential(x - highest); });
    }
    running_max = highest;
    running_sum = running_sum * factor + sum_over(s, n, [](const Vector<A>& x) { return x; });
    return factor;
  }

  /// Ignores NaN, which the exponentials carry on.
  static A maximum(const A* s, std::int64_t n) {
    Vector<A> lanes = broadcast(kMinusInfinity<A>);
    std::int64_t j = 0;
    for (; j + kLanes<A> <= n; j += kLanes<A>) {
      const Vector<A> x = load_lanes(s + j);
      lanes = x > lanes ? x : lanes;
    }
    A best = kMinusInfinity<A>;
    for (int lane = 0; lane < kLanes<A>; ++lane) best = std::max(best, lanes[lane]);
    for (; j < n; ++j) best = s[j] > best ? s[j] : best;
    return best;
  }

  /// sums_ = weights times values. Four rows go together over the keys that all of them see; the ends that only some
  /// see are done row by row, so that a key a query must not see isn't touched for it, not even times zero.
  void weigh_all(std::int64_t rows, const KeyRange* range, Rows<A> v) {
    std::int64_t i = 0;
    for (; i + 4 <= rows; i += 4) {
      const KeyRange common{range[i + 3].begin, range[i].end};
      if (common.begin >= common.end) {
        for (std::int64_t r = i; r < i + 4; ++r) weigh_row(r, range[r], v);
        continue;
      }
      for (std::int64_t r = i; r < i + 3; ++r) weigh_row(r, {range[r].begin, common.begin}, v);
      weigh<4, 2>(scores_.data() + i * kKeys, kKeys, v, common.begin, common.end, width_, sums_.data() + i * width_);
      for (std::int64_t r = i + 1; r < i + 4; ++r) weigh_row(r, {common.end, range[r].end}, v);
    }
    for (; i < rows; ++i) weigh_row(i, range[i], v);
  }

  void weigh_row(std::int64_t i, KeyRange range, Rows<A> v) {
    weigh<1, 8>(scores_.data() + i * kKeys, kKeys, v, range.begin, range.end, width_, sums_.data() + i * width_);
  }

  void accumulate(std::int64_t row, std::int64_t head, A factor, const A* sums) const {
    A* acc = address_as<A>(state_.acc, row, head * d_);
    const std::int64_t stride = state_.acc.col_stride;
    if (stride == 1) {
      for (std::int64_t c = 0; c < d_; ++c) acc[c] = acc[c] * factor + sums[c];
    } else {
      for (std::int64_t c = 0; c < d_; ++c) acc[c * stride] = acc[c * stride] * factor + sums[c];
    }
  }

  const Tensor& q_;
  const Tensor& k_;
  const Tensor& v_;
  HeadMap heads_;
  const AttentionShape& shape_;
  const AttentionState& state_;
  std::int64_t d_, width_;
  A scale_;
  Scratch<A> q_copy_, k_copy_, v_copy_, scores_, sums_;
};

template <typename A>
void merge(const AttentionState& other, const AttentionState& into) {
  if (into.max.cols == 0) return;
  const std::int64_t head_dim = into.acc.cols / into.max.cols;
  for (std::int64_t row = 0; row < into.max.rows; ++row) {
    for (std::int64_t head = 0; head < into.max.cols; ++head) {
      const A their_max = *address_as<const A>(other.max, row, head);
      A& max = *address_as<A>(into.max, row, head);
      const A highest = std::max(max, their_max);
      const A ours = exp_diff(max, highest), theirs = exp_diff(their_max, highest);
      max = highest;
      A& sum = *address_as<A>(into.sum, row, head);
      sum = sum * ours + *address_as<const A>(other.sum, row, head) * theirs;
      for (std::int64_t c = head * head_dim; c < (head + 1) * head_dim; ++c) {
        A& acc = *address_as<A>(into.acc, row, c);
        acc = acc * ours + *address_as<const A>(other.acc, row, c) * theirs;
      }
    }
  }
}

template <typename A>
void finish(const AttentionState& state, std::int64_t head_dim, const Tensor& out) {
  Scratch<A> scratch(head_dim), result(head_dim);
  for (std::int64_t row = 0; row < out.rows; ++row) {
    for (std::int64_t head = 0; head < state.max.cols; ++head) {
      const A sum = *address_as<const A>(state.sum, row, head);
      const A* acc = read(state.acc, row, head * head_dim, head_dim, scratch.data());
      for (std::int64_t c = 0; c < head_dim; ++c) result.data()[c] = acc[c] / sum;
      store(result.data(), out, row, head * head_dim, head_dim);
    }
  }
}

}  // namespace

void attention_partial(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads, const AttentionShape& shape,
                       const AttentionState& out) {
  with_compute_type(q.dtype, [&](auto type) { Attention<decltype(type)>(q, k, v, heads, shape, out).run(); });
}

void attention_merge(const AttentionState& other, const AttentionState& into) {
  with_compute_type(into.max.dtype, [&](auto type) { merge<decltype(type)>(other, into); });
}

void attention_finish(const AttentionState& state, std::int64_t head_dim, const Tensor& out) {
  with_compute_type(state.max.dtype, [&](auto type) { finish<decltype(type)>(state, head_dim, out); });
}

}  // namespace shardcheck::cpu
