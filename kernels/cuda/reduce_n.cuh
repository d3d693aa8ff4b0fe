// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over ranks: one pass over all terms, each element in the order and precision that ReduceSpec states.
// Only additions and comparisons, so the bits are those of the definition.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/cuda/pack.cuh"
#include "kernels/reduction.hpp"
#include "model/error.hpp"

namespace shardcheck::gpu {

/// Most terms by value in one launch: few for the usual node, many for the largest NVLink domains (72) and beyond.
inline constexpr int kFewTerms = 8, kManyTerms = 128;

template <typename T, int kMost>
using Terms = Array<View<const T>, kMost>;  // each [1, elements]

/// a + b; kRounds: the sum goes over the wire to the next rank in storage type T.
template <typename T, bool kRounds>
struct HopSum {
  using A = Accumulate<T>;
  __device__ A operator()(A a, A b) const {
    if constexpr (kRounds) {
      return widen(narrow<T>(a + b));
    } else {
      return a + b;
    }
  }
};

/// NaN on either side is NaN.
struct HopMax {
  template <typename A>
  __device__ A operator()(A a, A b) const {
    return a >= b || a != a ? a : b;
  }
};

/// The order of a chain: which term comes first, and the step from one to the next, modulo their number.
struct Chain {
  int start = 0, step = 1;
  std::int64_t first = 0;  // flat index of element 0 in the whole tensor
  std::int64_t chunk = 0;  // ring: chunk c of so many elements starts with term c + 1; 0: all start alike

  __device__ int start_of(std::int64_t element, int terms) const {
    return chunk == 0 ? start : static_cast<int>(((first + element) / chunk + 1) % terms);
  }
};

/// out = x_s op x_{s+step} op ..., from left to right.                              terms, out [1, elements]
template <int kCount, typename T, int kMost, typename Op>
__global__ void reduce_chain(Terms<T, kMost> terms, View<T> out, Chain chain, Op op) {
  constexpr bool kAligned = kCount > 1;
  for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
    int rank = chain.start_of(col, terms.size);
    Pack<T, kCount> x = load_pack<kCount, kAligned>(terms[rank], 0, col);
    Accumulate<T> total[kCount];
    UNROLLED for (int i = 0; i < kCount; ++i) total[i] = widen(x.values[i]);
    for (int t = 1; t < terms.size; ++t) {
      rank += chain.step;
      if (rank == terms.size) rank = 0;
      x = load_pack<kCount, kAligned>(terms[rank], 0, col);
      UNROLLED for (int i = 0; i < kCount; ++i) total[i] = op(total[i], widen(x.values[i]));
    }
    UNROLLED for (int i = 0; i < kCount; ++i) x.values[i] = narrow<T>(total[i]);
    store_pack<kCount, kAligned>(x, out, 0, col);
  }
}

/// out = the sum over a tree that splits [lo, hi) at lo + the largest power of two below hi - lo. Such a tree is what a
/// binary counter builds: level l holds the sum of 2^l terms, as 1 and 1 carry into the next level; in the end the
/// levels that are left are added, the last and smallest first.                             terms, out [1, elements]
template <int kCount, typename T, int kMost>
__global__ void reduce_fixed_tree(Terms<T, kMost> terms, View<T> out) {
  using A = Accumulate<T>;
  constexpr bool kAligned = kCount > 1;
  constexpr int kLevels = kMost > kFewTerms ? 8 : 4;
  static_assert(1 << (kLevels - 1) == kMost);
  for (std::int64_t col = grid_first_x() * kCount; col < out.cols; col += grid_step_x() * kCount) {
    A level[kLevels][kCount] = {};  // said for the compiler: every level is set before it is read
    Pack<T, kCount> x;
    for (int t = 0; t < terms.size; ++t) {
      x = load_pack<kCount, kAligned>(terms[t], 0, col);
      A carry[kCount];
      UNROLLED for (int i = 0; i < kCount; ++i) carry[i] = widen(x.values[i]);
      bool carries = true;
      UNROLLED for (int l = 0; l < kLevels; ++l) {
        const bool occupied = (t >> l & 1) != 0;
        UNROLLED for (int i = 0; i < kCount; ++i) {
          if (carries && occupied) carry[i] = level[l][i] + carry[i];
          if (carries && !occupied) level[l][i] = carry[i];
        }
        carries = carries && occupied;
      }
    }
    A total[kCount] = {};
    bool started = false;
    UNROLLED for (int l = 0; l < kLevels; ++l) {
      if ((terms.size >> l & 1) == 0) continue;
      UNROLLED for (int i = 0; i < kCount; ++i) total[i] = started ? level[l][i] + total[i]
                                                                   : level[l][i];
      started = true;
    }
    UNROLLED for (int i = 0; i < kCount; ++i) x.values[i] = narrow<T>(total[i]);
    store_pack<kCount, kAligned>(x, out, 0, col);
  }
}

/// All tensors as [1, elements], and how many neighbours may move together.
template <typename T, int kMost>
struct ReduceCall {
  Terms<T, kMost> terms;
  View<T> out;
  bool many = true;
  Cover cover;

  ReduceCall(std::span<const Tensor> from, const Tensor& to, std::int64_t first, bool in_chunks) {
    constexpr int kMany = kPackOf<T>;
    const std::int64_t elements = to.elements();
    // Borders of chunks are whole packs counted from the tensor's element 0.
    many = packs(to, kMany) && !(in_chunks && first % kMany != 0);
    for (const Tensor& term : from) {
      many = many && packs(term, kMany);
      terms.values[terms.size++] = View<const T>{view<const T>(term).data, 1, elements, elements, 1};
    }
    out = View<T>{view<T>(to).data, 1, elements, elements, 1};
    cover = gpu::cover(1, many ? (elements + kMany - 1) / kMany : elements);
  }
};

template <typename T, int kMost, typename Op>
void launch_chain(cudaStream_t stream, const ReduceCall<T, kMost>& call, const Chain& chain, Op op) {
  launch(call.many ? reduce_chain<kPackOf<T>, T, kMost, Op> : reduce_chain<1, T, kMost, Op>,
         {"reduce_n", stream, call.cover.grid, call.cover.block}, call.terms, call.out, chain, op);
}

template <int kMost, typename T>
void reduce_n_as(cudaStream_t stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                 std::int64_t first, std::int64_t total, const Tensor& out) {
  const int ranks = static_cast<int>(terms.size());
  const bool ring = spec.op == ReduceOp::sum && spec.order == ReduceOrder::ring;
  const ReduceCall<T, kMost> call(terms, out, first, ring);
  if (spec.op == ReduceOp::max) return launch_chain(stream, call, Chain{}, HopMax{});
  if (spec.order == ReduceOrder::fixed_tree) {
    return launch(call.many ? reduce_fixed_tree<kPackOf<T>, T, kMost> : reduce_fixed_tree<1, T, kMost>,
                  {"reduce_n", stream, call.cover.grid, call.cover.block}, call.terms, call.out);
  }
  Chain chain;
  if (ring) {
    const std::int64_t size = ring_chunk(total, ranks, out.dtype, 0).second;
    chain = {.first = first, .chunk = std::max<std::int64_t>(size, 1)};
  } else if (spec.order == ReduceOrder::tree) {
    chain = {.start = ranks - 1, .step = -1};
  }
  if constexpr (sizeof(T) == 2) {
    if (rounds_every_hop(spec)) return launch_chain(stream, call, chain, HopSum<T, true>{});
  }
  launch_chain(stream, call, chain, HopSum<T, false>{});
}

/// Throws InputError for more than kManyTerms terms: so many ranks are for the cpu device.
void reduce_n(cudaStream_t stream, std::span<const Tensor> terms, const ReduceSpec& spec,
              std::int64_t first, std::int64_t total, const Tensor& out) {
  if (terms.size() > kManyTerms) {
    throw InputError("reduce_n: a GPU sums up to " + std::to_string(kManyTerms) + " ranks' terms, not " +
                     std::to_string(terms.size()) + ": reduce over smaller groups, one after the other");
  }
  with_storage_type(out.dtype, [&]<typename T>(T) {
    if (terms.size() <= kFewTerms)
      return reduce_n_as<kFewTerms, T>(stream, terms, spec, first, total, out);
    return reduce_n_as<kManyTerms, T>(stream, terms, spec, first, total, out);
  });
}

}  // namespace shardcheck::gpu
