// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduction.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace shardcheck {
namespace {

constexpr std::int64_t kGrainBytes = 16;  // a chunk border never splits what one thread moves at once

constexpr std::array kOrders = {ReduceOrder::ring,     ReduceOrder::tree, ReduceOrder::one_shot,
                                ReduceOrder::two_shot, ReduceOrder::nvls, ReduceOrder::fixed_tree};
constexpr std::array kHops = {HopRounding::wire, HopRounding::f32};

}  // namespace

std::pair<std::int64_t, std::int64_t> ring_chunk(std::int64_t total, int ranks, DType wire, int chunk) {
  const std::int64_t grain = kGrainBytes / static_cast<std::int64_t>(element_size(wire));
  const std::int64_t even = (total + ranks - 1) / ranks;
  const std::int64_t size = (even + grain - 1) / grain * grain;
  return {std::min(total, chunk * size), std::min(total, (chunk + 1) * size)};
}

std::string_view name(ReduceOp op) { return op == ReduceOp::sum ? "sum" : "max"; }

std::string_view name(ReduceOrder order) {
  switch (order) {
    case ReduceOrder::ring: return "ring";
    case ReduceOrder::tree: return "tree";
    case ReduceOrder::one_shot: return "one_shot";
    case ReduceOrder::two_shot: return "two_shot";
    case ReduceOrder::nvls: return "nvls";
    case ReduceOrder::fixed_tree: return "fixed_tree";
  }
  return "";
}

std::string_view name(HopRounding hop) { return hop == HopRounding::wire ? "wire" : "f32"; }

std::optional<ReduceOrder> parse_reduce_order(std::string_view word) {
  const auto found = std::ranges::find(kOrders, word, [](ReduceOrder order) { return name(order); });
  return found == kOrders.end() ? std::nullopt : std::optional(*found);
}

std::optional<HopRounding> parse_hop_rounding(std::string_view word) {
  const auto found = std::ranges::find(kHops, word, [](HopRounding hop) { return name(hop); });
  return found == kHops.end() ? std::nullopt : std::optional(*found);
}

}  // namespace shardcheck
