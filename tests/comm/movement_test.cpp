// SPDX-License-Identifier: Apache-2.0
// What gathers, exchanges, broadcasts and messages move, and what they leave alone.
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>

#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {
namespace {

PerRank gather(int size, const PerRank& parts, Dim dim, const Partition& part, std::int64_t rows,
               std::int64_t cols) {
  Ranks ranks(size);
  PerRank results(parts.size());
  ranks.run([&](Rank& rank) {
    const auto self = static_cast<std::size_t>(rank.index);
    const Tensor out = rank.empty(parts[self].dtype(), rows, cols);
    rank.over()->all_gather(rank.stream(), rank.put(parts[self]), dim, part, out, at("lm_head"));
    results[self] = rank.get(out);
  });
  return results;
}

void expect_gathers(Dim dim, const Partition& part, std::int64_t other_extent) {
  const std::int64_t rows = dim == Dim::tokens ? part.extent() : other_extent;
  const std::int64_t cols = dim == Dim::tokens ? other_extent : part.extent();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const HostTensor whole = varied(dtype, rows, cols, 3);
    PerRank parts;
    for (int rank = 0; rank < part.ranks(); ++rank)
      parts.push_back(part_of(whole, dim, part.of(rank)));
    for (const HostTensor& result : gather(part.ranks(), parts, dim, part, rows, cols)) {
      EXPECT_TRUE(result.bitwise_equal(whole)) << name(dtype);
    }
  }
}

TEST(AllGather, UnevenParts) {
  expect_gathers(Dim::features, Partition::balanced(257, 3), 5);
  expect_gathers(Dim::tokens, Partition::balanced(17, 4), 6);
}

TEST(AllGather, EmptyParts) {
  expect_gathers(Dim::tokens, Partition::balanced(1, 4), 8);
  expect_gathers(Dim::tokens, Partition::balanced(0, 3), 8);
  expect_gathers(Dim::features, Partition(6, {{}, {{0, 6}}, {}}), 4);
  expect_gathers(Dim::features, Partition::balanced(12, 3), 0);
}

TEST(AllGather, PartsOfSeveralRanges) {
  const Partition part(12, {{{2, 4}, {9, 10}}, {{0, 2}, {10, 12}}, {{4, 9}}});
  expect_gathers(Dim::features, part, 3);
  expect_gathers(Dim::tokens, part, 3);
}

TEST(AllGather, LargeEnoughForEveryRankToWork) {
  expect_gathers(Dim::features, Partition::balanced(1031, 3), 301);
  expect_gathers(Dim::tokens, Partition::balanced(301, 3), 1031);
}

// Ranks 0, 1 and 2 hold [0, 3), [2, 5) and [4, 6), and differ in what they share.
TEST(AllGather, LowestOwnerWinsWherePartsOverlap) {
  const Partition part(6, {{{0, 3}}, {{2, 5}}, {{4, 6}}});
  const PerRank parts = {round_to(DType::f32, {1, 3}, std::vector<double>{1, 2, 3}),
                         round_to(DType::f32, {1, 3}, std::vector<double>{30, 4, 5}),
                         round_to(DType::f32, {1, 2}, std::vector<double>{50, 6})};
  for (const HostTensor& result : gather(3, parts, Dim::features, part, 1, 6)) {
    EXPECT_EQ(result.to_f64(), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  }
}

// A hole in the partition: nobody fills elements 2 and 3, and nothing hides it.
TEST(AllGather, WhatNobodyFillsIsPoison) {
  const Partition part(6, {{{0, 2}}, {{4, 6}}});
  const HostTensor whole = varied(DType::bf16, 2, 6, 8);
  const PerRank parts = {part_of(whole, Dim::features, part.of(0)),
                         part_of(whole, Dim::features, part.of(1))};
  for (const HostTensor& result : gather(2, parts, Dim::features, part, 2, 6)) {
    for (std::int64_t i = 0; i < 12; ++i) {
      const bool hole = i % 6 == 2 || i % 6 == 3;
      EXPECT_EQ(std::isnan(result.at(i)), hole) << i;
      EXPECT_TRUE(hole || result.at(i) == whole.at(i)) << i;
    }
  }
}

TEST(AllGather, StridedOperands) {
  const Partition part = Partition::balanced(7, 2);
  const HostTensor whole = varied(DType::f32, 4, 7, 2);
  Ranks ranks(2);
  ranks.run([&](Rank& rank) {
    const std::int64_t width = part.size(rank.index);
    const Tensor wide = rank.empty(DType::f32, 4, width + 3);
    const Tensor in = wide.col_range(1, 1 + width);
    const HostTensor mine = part_of(whole, Dim::features, part.of(rank.index));
    const Tensor dense = rank.put(mine);
    wide.device->copy(rank.stream(), dense, in);
    const Tensor out = rank.empty(DType::f32, 4, 11).col_range(2, 9);
    rank.over()->all_gather(rank.stream(), in, Dim::features, part, out, at("q_proj"));
    EXPECT_TRUE(rank.get(out).bitwise_equal(whole));
  });
}

// Ulysses: from all heads of some tokens to some heads of all tokens, and back.
TEST(AllToAll, ExchangesUnevenParts) {
  for (const std::int64_t tokens : {0, 1, 11, 900}) {
    const Partition by_token = Partition::balanced(tokens, 4);
    const Partition by_feature(40, {{{0, 16}}, {{24, 40}}, {}, {{16, 24}}});
    const HostTensor whole = varied(DType::bf16, tokens, 40, 7);
    Ranks ranks(4);
    ranks.run([&](Rank& rank) {
      const HostTensor mine = part_of(whole, Dim::tokens, by_token.of(rank.index));
      const Tensor heads = rank.empty(DType::bf16, tokens, by_feature.size(rank.index));
      const Tensor back = rank.empty(DType::bf16, by_token.size(rank.index), 40);
      const auto tp = rank.over();
      tp->all_to_all(rank.stream(), rank.put(mine), Dim::features, by_feature, Dim::tokens,
                     by_token, heads, at("q_proj"));
      EXPECT_TRUE(
          rank.get(heads).bitwise_equal(part_of(whole, Dim::features, by_feature.of(rank.index))));
      tp->all_to_all(rank.stream(), heads, Dim::tokens, by_token, Dim::features, by_feature, back,
                     at("attn"));
      EXPECT_TRUE(rank.get(back).bitwise_equal(mine));
    });
  }
}

TEST(Broadcast, GivesTheRootsValueToAll) {
  for (int root = 0; root < 3; ++root) {
    for (const std::int64_t rows : {2, 600}) {
      Ranks ranks(3);
      ranks.run([&](Rank& rank) {
        const Tensor in = rank.put(
            varied(DType::f16, rows, 300, static_cast<std::uint64_t>(rank.index)));
        const Tensor out = rank.empty(DType::f16, rows, 300);
        rank.over()->broadcast(rank.stream(), in, root, out, at("embed_tokens"));
        EXPECT_TRUE(rank.get(out).bitwise_equal(
            varied(DType::f16, rows, 300, static_cast<std::uint64_t>(root))));
      });
    }
  }
}

// Messages between a pair arrive in the order they were sent, whatever the other pairs do.
TEST(SendRecv, MatchesByPairAndOrder) {
  Ranks ranks(3);
  const auto message = [](int from, int to, int index) {
    return varied(DType::f32, index + 1, 5, static_cast<std::uint64_t>(100 * from + 10 * to + index));
  };
  ranks.run([&](Rank& rank) {
    const auto tp = rank.over();
    const auto receive = [&](int from, int index) {
      const Tensor out = rank.empty(DType::f32, index + 1, 5);
      tp->recv(rank.stream(), out, from, at("layers.4.in"));
      EXPECT_TRUE(rank.get(out).bitwise_equal(message(from, rank.index, index)));
    };
    const auto send = [&](int to, int index) {
      tp->send(rank.stream(), rank.put(message(rank.index, to, index)), to, at("layers.3"));
    };
    for (int index = 0; index < 4; ++index) {
      if (rank.index == 0) {
        send(1, index);
        send(2, index);
      } else if (rank.index == 1) {
        receive(0, index);
        receive(2, index);
      } else {
        send(1, index);
        receive(0, index);
      }
    }
  });
}

TEST(SendRecv, BetweenTwoLeavesTheGroupInStep) {
  Ranks ranks(3);
  ranks.run([](Rank& rank) {
    const auto tp = rank.over();
    const Tensor in = rank.put(varied(DType::f32, 1, 4, 1)), out = rank.empty(DType::f32, 1, 4);
    if (rank.index == 0) tp->send(rank.stream(), in, 2, at("layers.3"));
    if (rank.index == 2) tp->recv(rank.stream(), out, 0, at("layers.4"));
    tp->all_reduce(rank.stream(), in, {}, out, at("norm"));
  });
}

TEST(Groups, AxesOfAMeshAreApart) {
  const Mesh mesh{{{"dp", 2}, {"tp", 3}}};
  for (const std::vector<std::string>& axes :
       {std::vector<std::string>{"tp"}, {"dp"}, {"dp", "tp"}, {"tp", "dp"}}) {
    Ranks ranks(mesh);
    ranks.run([&](Rank& rank) {
      const auto group = rank.over(axes);
      const Partition part = Partition::balanced(group->size(), group->size());
      const Tensor in = rank.put(round_to(DType::f32, {1, 1}, std::vector<double>{rank.index + 0.5}));
      const Tensor out = rank.empty(DType::f32, 1, group->size());
      group->all_gather(rank.stream(), in, Dim::features, part, out, at("norm"));
      std::vector<int> indices;
      for (const std::string& axis : axes) indices.push_back(mesh.axis_index(axis));
      std::vector<double> expected;
      for (const int member : mesh.group(rank.index, indices)) expected.push_back(member + 0.5);
      EXPECT_EQ(rank.get(out).to_f64(), expected);
    });
  }
}

TEST(GroupOfOne, CopiesOrDoesNothing) {
  Ranks ranks(1);
  const Partition part(6, {{{0, 6}}});
  const HostTensor value = varied(DType::bf16, 3, 6, 5);
  ranks.run([&](Rank& rank) {
    const auto tp = rank.over();
    const auto fresh = [&] { return rank.empty(DType::bf16, 3, 6); };
    const Tensor in = rank.put(value);
    const Tensor outs[] = {fresh(), fresh(), fresh(), fresh(), fresh()};
    tp->all_reduce(rank.stream(), in, {}, outs[0], at("a"));
    tp->all_gather(rank.stream(), in, Dim::features, part, outs[1], at("b"));
    tp->reduce_scatter(rank.stream(), in, Dim::features, part, {}, outs[2], at("c"));
    tp->all_to_all(rank.stream(), in, Dim::features, part, Dim::tokens, Partition(3, {{{0, 3}}}),
                   outs[3], at("d"));
    tp->broadcast(rank.stream(), in, 0, outs[4], at("e"));
    for (const Tensor& out : outs) EXPECT_TRUE(rank.get(out).bitwise_equal(value));
    tp->all_reduce(rank.stream(), in, {}, in, at("f"));
    EXPECT_TRUE(rank.get(in).bitwise_equal(value));
  });
  EXPECT_TRUE(ranks.ledgers[0].empty());
}

struct Load {
  int ranks;
  std::int64_t rows;
};
void PrintTo(const Load& load, std::ostream* out) { *out << "P" << load.ranks << "x" << load.rows; }

class Stress : public ::testing::TestWithParam<Load> {};

// Buffers are reused at once and ranks run apart as far as they can: a collective that let a rank go while a peer still
// read its input would give another sum. The larger tensor is moved by several ranks at once.
TEST_P(Stress, ReusedBuffersStayRight) {
  const auto [size, rows] = GetParam();
  constexpr std::int64_t kCols = 97;
  Ranks ranks(size);
  std::atomic<int> wrong = 0;
  ranks.run([&, size = size, rows = rows](Rank& rank) {
    const auto tp = rank.over();
    const Partition part = Partition::balanced(kCols, size);
    const Tensor whole = rank.empty(DType::f64, rows, kCols);
    const Tensor mine = rank.empty(DType::f64, rows, part.size(rank.index));
    const Tensor sum = rank.empty(DType::f64, rows, kCols);
    for (int i = 0; i < 200; ++i) {
      HostTensor input(DType::f64, {rows, kCols});
      double next = 1000.0 * i + 7.0 * rank.index;
      for (double& value : input.as_mutable<double>()) value = next++;
      whole.device->upload(rank.stream(), input, whole);
      tp->all_reduce(rank.stream(), whole, {}, sum, at("a", Phase::decode, i));
      tp->reduce_scatter(rank.stream(), sum, Dim::features, part, {}, mine, at("b", Phase::decode, i));
      tp->all_gather(rank.stream(), mine, Dim::features, part, whole, at("c", Phase::decode, i));
      const HostTensor result = rank.get(whole);
      double expected = size * (size * 1000.0 * i + 7.0 * size * (size - 1) / 2);
      for (const double value : result.as<double>()) {
        if (!(value == expected)) ++wrong;  // integers below 2^53: exact
        expected += size * size;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Loads, Stress, ::testing::Values(Load{4, 5}, Load{16, 5}, Load{4, 300}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace shardcheck::testing
