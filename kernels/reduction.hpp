// SPDX-License-Identifier: Apache-2.0
// In which order, and in which precision, the terms of a cross-rank sum are added.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "model/dtype.hpp"

namespace shardcheck {

enum class ReduceOp { sum, max };

/// P terms x_0 .. x_{P-1}, one of each rank. The order is that of a sum; a maximum is exact in any order.
///   ring        chunk c of P: x_{c+1} + x_{c+2} + ... + x_c, indices mod P; rounded after every +
///   tree        ((own + child 0) + child 1) + child 2 along the tree that NCCL builds for this very P on one node:
///               a chain, x_{P-1} first, x_0 (the root) last
///   one_shot    x_0 + x_1 + ... + x_{P-1} on every rank; f32, one rounding
///   two_shot    the same sum, computed once by the owner of each slice, then gathered
///   nvls        in the switch: f32, one rounding, here in rank order
///   fixed_tree  f32 nodes; [lo, hi) splits at lo + the largest power of two below hi - lo; one rounding
enum class ReduceOrder { ring, tree, one_shot, two_shot, nvls, fixed_tree };

/// What a running sum is kept in between two additions.
enum class HopRounding { wire, f32 };

struct ReduceSpec {
  ReduceOp op = ReduceOp::sum;
  ReduceOrder order = ReduceOrder::ring;
  HopRounding hop = HopRounding::wire;  // one_shot, two_shot, nvls and fixed_tree accumulate in f32 whatever this says
  bool operator==(const ReduceSpec&) const = default;
};

/// True where the running sum is rounded to the wire dtype after every addition.
inline bool rounds_every_hop(const ReduceSpec& spec) {
  const bool chain = spec.order == ReduceOrder::ring || spec.order == ReduceOrder::tree;
  return chain && spec.hop == HopRounding::wire;
}

/// Flat elements {begin, end} of chunk `chunk` of a ring over `ranks` ranks: pieces of ceil(total / ranks) elements,
/// rounded up to 16 bytes of the wire dtype, the last ones shorter or empty. This is the grid of NCCL's ring on one
/// channel for a tensor that fits one loop (src/device/all_reduce.h).
std::pair<std::int64_t, std::int64_t> ring_chunk(std::int64_t total, int ranks, DType wire, int chunk);

std::string_view name(ReduceOp op);
std::string_view name(ReduceOrder order);
std::string_view name(HopRounding hop);
std::optional<ReduceOrder> parse_reduce_order(std::string_view word);
std::optional<HopRounding> parse_hop_rounding(std::string_view word);

}  // namespace shardcheck
