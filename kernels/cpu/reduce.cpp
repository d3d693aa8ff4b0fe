// SPDX-License-Identifier: Apache-2.0
// Sums over ranks. Up to four terms at a time are added in registers; longer sums are kept in between, stretch by
// stretch, so that the terms stream past once.
#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cpu/lanes.hpp"
#include "kernels/cpu/memory.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

// Elements per step: a few pages of each term, and a running sum that stays in L1 or close to it.
constexpr std::int64_t kStretch = 4096;
constexpr std::size_t kAtOnce = 4;

template <typename W>
using AccumulateOf = std::conditional_t<std::is_same_v<W, double>, double, float>;

/// a + b in the accumulate type; kRounds: the sum goes over the wire (type W) to the next rank.
template <typename W, bool kRounds>
struct Sum {
  template <typename V>
  V operator()(const V& a, const V& b) const {
    if constexpr (kRounds && sizeof(W) == 2) {
      return through_storage<W>(a + b);
    } else {
      return a + b;
    }
  }
};

/// NaN on either side is NaN.
struct Max {
  template <typename V>
  V operator()(const V& a, const V& b) const {
    return a >= b || a != a ? a : b;
  }
};

/// to[i] = from[i] op x_0[i] op ... op x_{kTerms-1}[i] for whole vectors of lanes.
template <std::size_t kTerms, typename A, typename W, typename From, typename To, typename Op>
void combine(const From* from, const W* const* x, std::int64_t n, To* to, Op op) {
  const W* term[kTerms];
  std::copy_n(x, kTerms, term);
  for (std::int64_t i = 0; i < n; i += kLanes<A>) {
    Vector<A> v = load_lanes(from + i);
#pragma GCC unroll 4
    for (std::size_t t = 0; t < kTerms; ++t) v = op(v, load_lanes(term[t] + i));
    store_lanes(to + i, v);
  }
}

template <typename A, typename W, typename From, typename To, typename Op>
void combine(const From* from, std::span<const W* const> x, std::int64_t n, To* to, Op op) {
  switch (x.size()) {
    case 0: return combine<0, A>(from, x.data(), n, to, op);
    case 1: return combine<1, A>(from, x.data(), n, to, op);
    case 2: return combine<2, A>(from, x.data(), n, to, op);
    case 3: return combine<3, A>(from, x.data(), n, to, op);
    default: return combine<kAtOnce, A>(from, x.data(), n, to, op);
  }
}

/// Reductions of terms of type W, each given by the address of its element 0.
template <typename W>
class Reduction {
 public:
  using A = AccumulateOf<W>;

  explicit Reduction(std::size_t ranks) {
    for (std::size_t width = 1; width < 2 * ranks; width *= 2) levels_.emplace_back(kStretch);
  }

  /// out = x_0 op x_1 op ..., from left to right.
  template <typename Op>
  void chain(const std::vector<const W*>& x, std::int64_t n, W* out, Op op) {
    stretches(x, n, out, [&](std::span<const W* const> term, std::int64_t count, W* to) {
      const W* const first = term[0];
      std::span<const W* const> rest = term.subspan(1);
      if (rest.size() <= kAtOnce) return combine<A, W>(first, rest, count, to, op);
      A* const sum = levels_[0].data();
      combine<A, W>(first, rest.first(kAtOnce), count, sum, op);
      for (rest = rest.subspan(kAtOnce); rest.size() > kAtOnce; rest = rest.subspan(kAtOnce)) {
        combine<A, W>(sum, rest.first(kAtOnce), count, sum, op);
      }
      combine<A, W>(sum, rest, count, to, op);
    });
  }

  void fixed_tree(const std::vector<const W*>& x, std::int64_t n, W* out) {
    stretches(x, n, out, [&](std::span<const W* const> term, std::int64_t count, W* to) {
      node(term, count, 0);
      combine<0, A>(levels_[0].data(), term.data(), count, to, Sum<W, false>{});
    });
  }

 private:
  /// Calls body(terms, n, out) for stretches of whole vectors; the last, partial vector is padded with zeros.
  template <typename Body>
  void stretches(const std::vector<const W*>& x, std::int64_t n, W* out, Body body) {
    std::vector<const W*> at(x);
    const std::int64_t whole = n / kLanes<A> * kLanes<A>;
    for (std::int64_t i = 0; i < whole; i += kStretch) {
      for (std::size_t r = 0; r < x.size(); ++r) at[r] = x[r] + i;
      body(at, std::min(kStretch, whole - i), out + i);
    }
    if (whole == n) return;
    std::vector<W> padded(x.size() * kLanes<A>, W{});
    for (std::size_t r = 0; r < x.size(); ++r) {
      W* const copy = padded.data() + r * kLanes<A>;
      std::copy(x[r] + whole, x[r] + n, copy);
      at[r] = copy;
    }
    W last[kLanes<A>];
    body(at, kLanes<A>, last);
    std::copy_n(last, n - whole, out + whole);
  }

  /// levels_[level] = the sum of these terms: the first 2^k of them plus the others, f32 (f64) all the way.
  void node(std::span<const W* const> x, std::int64_t n, std::size_t level) {
    A* const sum = levels_[level].data();
    if (x.size() <= 3) return combine<A, W>(x[0], x.subspan(1), n, sum, Sum<W, false>{});  // (0 + 1) + 2
    const std::size_t left = std::bit_floor(x.size() - 1);
    node(x.first(left), n, level);
    node(x.subspan(left), n, level + 1);
    const A* const right = levels_[level + 1].data();
    for (std::int64_t i = 0; i < n; ++i) sum[i] += right[i];
  }

  std::vector<Scratch<A>> levels_;  // one running sum per level of the tree
};

/// start, start + 1, ... start - 1, modulo P.
template <typename W>
std::vector<const W*> round_from(int start, std::vector<const W*> x) {
  std::ranges::rotate(x, x.begin() + start % std::ssize(x));
  return x;
}

template <typename W, bool kRounds>
void reduce_sum(const std::vector<const W*>& x, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
                const Tensor& out) {
  const int ranks = static_cast<int>(x.size());
  const std::int64_t n = out.elements();
  W* const to = address_as<W>(out, 0, 0);
  Reduction<W> reduction(x.size());
  switch (spec.order) {
    case ReduceOrder::ring:
      for (int chunk = 0; chunk < ranks; ++chunk) {
        const auto range = ring_chunk(total, ranks, out.dtype, chunk);
        const std::int64_t begin = std::max(range.first - first, std::int64_t{0});
        const std::int64_t end = std::min(range.second - first, n);
        if (begin >= end) continue;
        std::vector<const W*> order = round_from(chunk + 1, x);
        for (const W*& term : order) term += begin;
        reduction.chain(order, end - begin, to + begin, Sum<W, kRounds>{});
      }
      return;
    case ReduceOrder::tree: return reduction.chain({x.rbegin(), x.rend()}, n, to, Sum<W, kRounds>{});
    case ReduceOrder::one_shot:
    case ReduceOrder::two_shot:
    case ReduceOrder::nvls: return reduction.chain(x, n, to, Sum<W, kRounds>{});
    case ReduceOrder::fixed_tree: return reduction.fixed_tree(x, n, to);
  }
}

template <typename W>
void reduce(std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
            const Tensor& out) {
  std::vector<const W*> x;
  for (const Tensor& term : terms) x.push_back(address_as<const W>(term, 0, 0));
  if (spec.op == ReduceOp::max) {
    return Reduction<W>(x.size()).chain(x, out.elements(), address_as<W>(out, 0, 0), Max{});
  }
  if (rounds_every_hop(spec)) {
    reduce_sum<W, true>(x, spec, first, total, out);
  } else {
    reduce_sum<W, false>(x, spec, first, total, out);
  }
}

}  // namespace

void reduce_n(std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
              const Tensor& out) {
  switch (out.dtype) {
    case DType::f64: return reduce<double>(terms, spec, first, total, out);
    case DType::f32: return reduce<float>(terms, spec, first, total, out);
    case DType::bf16: return reduce<Bf16>(terms, spec, first, total, out);
    default: return reduce<F16>(terms, spec, first, total, out);
  }
}

}  // namespace shardcheck::cpu
