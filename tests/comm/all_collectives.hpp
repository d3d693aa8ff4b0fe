// SPDX-License-Identifier: Apache-2.0
// Every collective on uneven parts and strided operands: what ranks of all kinds must do to the same bits.
#pragma once

#include <vector>

#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {

/// One result per collective and rank. Nothing is read before the end, so that no rank waits for its own stream.
using Results = std::vector<PerRank>;

inline constexpr ReduceOrder kAllOrders[] = {ReduceOrder::ring,     ReduceOrder::tree,
                                             ReduceOrder::one_shot, ReduceOrder::two_shot,
                                             ReduceOrder::nvls,     ReduceOrder::fixed_tree};

inline Results no_results(int size) { return Results(22, PerRank(static_cast<std::size_t>(size))); }

/// One rank's part. Input buffers are filled anew at once.
inline void all_collectives(Rank& rank, int size, DType dtype, Results& results) {
  const auto tp = rank.over();
  const auto seed = static_cast<std::uint64_t>(rank.index);
  const Partition by_token = Partition::balanced(5, size), by_feature = Partition::balanced(23, size);
  std::vector<Tensor> outs;
  Tensor in = rank.empty(dtype, 5, 23);
  const auto refill = [&](std::uint64_t round) {
    in.device->upload(rank.stream(), varied(dtype, 5, 23, 100 * round + seed), in);
  };
  std::uint64_t round = 0;
  for (const ReduceOrder order : kAllOrders) {
    const ReduceSpec spec{ReduceOp::sum, order, HopRounding::wire};
    refill(++round);
    outs.push_back(rank.empty(dtype, 5, 23));
    tp->all_reduce(rank.stream(), in, spec, outs.back(), at("a"));
    refill(++round);
    outs.push_back(rank.empty(dtype, by_token.size(rank.index), 23));
    tp->reduce_scatter(rank.stream(), in, Dim::tokens, by_token, spec, outs.back(), at("b"));
    refill(++round);
    outs.push_back(rank.empty(dtype, 5, by_feature.size(rank.index)));
    tp->reduce_scatter(rank.stream(), in, Dim::features, by_feature, spec, outs.back(), at("c"));
  }
  refill(++round);
  const Range mine = by_feature.of(rank.index).empty() ? Range{} : by_feature.of(rank.index)[0];
  outs.push_back(rank.empty(dtype, 5, 23));
  tp->all_gather(rank.stream(), in.col_range(mine.begin, mine.end), Dim::features, by_feature,
                 outs.back(), at("d"));
  refill(++round);
  outs.push_back(rank.empty(dtype, 5, by_feature.size(rank.index)));
  tp->all_to_all(rank.stream(), in.row_range(0, by_token.size(rank.index)), Dim::features,
                 by_feature, Dim::tokens, by_token, outs.back(), at("e"));
  refill(++round);
  outs.push_back(rank.empty(dtype, 5, 23));
  tp->broadcast(rank.stream(), in, size - 1, outs.back(), at("f"));
  refill(++round);
  outs.push_back(rank.empty(dtype, 5, 23));
  if (rank.index == 0) tp->send(rank.stream(), in, size - 1, at("g"));
  if (rank.index == size - 1) tp->recv(rank.stream(), outs.back(), 0, at("g"));
  if (rank.index != size - 1) outs.pop_back();
  refill(++round);  // peers may not see this
  for (std::size_t i = 0; i < outs.size(); ++i) {
    results[i][static_cast<std::size_t>(rank.index)] = rank.get(outs[i]);
  }
}

}  // namespace shardcheck::testing
