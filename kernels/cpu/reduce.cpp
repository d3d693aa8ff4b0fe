// SPDX-License-Identifier: Apache-2.0
// Sums over ranks, block by block: the running sum of a block stays in L1 while the terms stream past.
#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/primitives.hpp"
#include "model/float_bits.hpp"

namespace shardcheck::cpu {
namespace {

/// values = values as they come back from the wire: one rounding, then exact widening.
void through_wire(DType wire, float* values, std::int64_t n) {
  if (wire == DType::bf16) {
    for (std::int64_t i = 0; i < n; ++i) values[i] = bf16_to_f32(f32_to_bf16(values[i]));
  } else if (wire == DType::f16) {
    for (std::int64_t i = 0; i < n; ++i) values[i] = f16_to_f32(f32_to_f16(values[i]));
  }
}
void through_wire(DType, double*, std::int64_t) {}

/// The terms, contiguous, addressed by flat element; A is the type that they are added in.
template <typename A>
class Reduction {
 public:
  Reduction(std::span<const Tensor> terms, const ReduceSpec& spec, const Tensor& out)
      : terms_(terms), rounds_(rounds_every_hop(spec)), out_(out), term_scratch_(kBlock) {
    for (std::size_t width = 1; width < 2 * terms.size(); width *= 2) levels_.emplace_back(kBlock);
  }

  /// Elements [begin, end): terms in this order, one after the other.
  void chain(std::span<const int> order, std::int64_t begin, std::int64_t end) {
    blocks(begin, end, [&](std::int64_t at, std::int64_t n, A* sum) {
      load(term(order[0]), 0, at, n, sum);
      for (const int rank : order.subspan(1)) {
        const A* x = read(term(rank), 0, at, n, term_scratch_.data());
        for (std::int64_t i = 0; i < n; ++i) sum[i] += x[i];
        if (rounds_) through_wire(out_.dtype, sum, n);
      }
    });
  }

  void fixed_tree(std::int64_t begin, std::int64_t end) {
    blocks(begin, end, [&](std::int64_t at, std::int64_t n, A*) { node(0, std::ssize(terms_), 0, at, n); });
  }

  /// NaN in any term is NaN in the result.
  void maximum(std::int64_t begin, std::int64_t end) {
    blocks(begin, end, [&](std::int64_t at, std::int64_t n, A* best) {
      load(term(0), 0, at, n, best);
      for (int rank = 1; rank < std::ssize(terms_); ++rank) {
        const A* x = read(term(rank), 0, at, n, term_scratch_.data());
        for (std::int64_t i = 0; i < n; ++i) best[i] = best[i] >= x[i] || best[i] != best[i] ? best[i] : x[i];
      }
    });
  }

 private:
  const Tensor& term(int rank) const { return terms_[static_cast<std::size_t>(rank)]; }

  template <typename Body>
  void blocks(std::int64_t begin, std::int64_t end, Body body) {
    for (std::int64_t at = begin; at < end; at += kBlock) {
      const std::int64_t n = std::min(kBlock, end - at);
      body(at, n, levels_[0].data());
      store(levels_[0].data(), out_, 0, at, n);
    }
  }

  /// levels_[level] = the sum of terms [lo, hi).
  void node(std::int64_t lo, std::int64_t hi, std::size_t level, std::int64_t at, std::int64_t n) {
    A* sum = levels_[level].data();
    if (hi - lo == 1) return load(term(static_cast<int>(lo)), 0, at, n, sum);
    const auto below = static_cast<std::uint64_t>(hi - lo - 1);
    const std::int64_t split = lo + static_cast<std::int64_t>(std::bit_floor(below));
    node(lo, split, level, at, n);
    node(split, hi, level + 1, at, n);
    const A* right = levels_[level + 1].data();
    for (std::int64_t i = 0; i < n; ++i) sum[i] += right[i];
  }

  std::span<const Tensor> terms_;
  bool rounds_;
  const Tensor& out_;
  Scratch<A> term_scratch_;
  std::vector<Scratch<A>> levels_;  // one running sum per level of the tree
};

/// start, start + 1, ... start - 1, modulo P.
std::vector<int> round_from(int start, int ranks) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::rotate(order, order.begin() + start % ranks);
  return order;
}

template <typename A>
void reduce(std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
            const Tensor& out) {
  const int ranks = static_cast<int>(terms.size());
  const std::int64_t n = out.elements();
  Reduction<A> reduction(terms, spec, out);
  if (spec.op == ReduceOp::max) return reduction.maximum(0, n);
  switch (spec.order) {
    case ReduceOrder::ring:
      for (int chunk = 0; chunk < ranks; ++chunk) {
        const auto [begin, end] = ring_chunk(total, ranks, out.dtype, chunk);
        reduction.chain(round_from(chunk + 1, ranks), std::max(begin - first, std::int64_t{0}),
                        std::min(end - first, n));
      }
      return;
    case ReduceOrder::tree: {
      std::vector<int> order = round_from(0, ranks);
      std::ranges::reverse(order);
      return reduction.chain(order, 0, n);
    }
    case ReduceOrder::one_shot:
    case ReduceOrder::two_shot:
    case ReduceOrder::nvls: return reduction.chain(round_from(0, ranks), 0, n);
    case ReduceOrder::fixed_tree: return reduction.fixed_tree(0, n);
  }
}

}  // namespace

void reduce_n(std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
              const Tensor& out) {
  with_compute_type(out.dtype, [&](auto type) { reduce<decltype(type)>(terms, spec, first, total, out); });
}

}  // namespace shardcheck::cpu
