// SPDX-License-Identifier: Apache-2.0
// Communicators over a library that wants equal counts and contiguous memory: any partition, the bits of thread ranks,
// and an end to every failure.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.hpp"
#include "model/error.hpp"
#include "sharded/comm/worlds.hpp"
#include "tests/comm/all_collectives.hpp"
#include "tests/comm/board_library.hpp"
#include "tests/comm/local_wire.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

const std::set<ReduceOrder> kSums[] = {{}, {ReduceOrder::one_shot, ReduceOrder::two_shot}};

Ranks library_ranks(const Mesh& mesh, std::set<ReduceOrder> own = {}) {
  return {make_library_world(mesh, std::make_shared<BoardLibrary>(std::move(own))), make_cpu_device()};
}

void expect_equal(const Results& results, const Results& expected) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t rank = 0; rank < results[i].size(); ++rank) {
      EXPECT_TRUE(results[i][rank].bitwise_equal(expected[i][rank]))
          << "collective " << i << ", rank " << rank;
    }
  }
}

TEST(Library, AnyCollectiveHasTheBitsOfThreads) {
  for (const auto& own : kSums) {
    for (const int size : {2, 3, 4, 8}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Ranks threads(size);
        Results expected = no_results(size), results = no_results(size);
        threads.run([&](Rank& rank) { all_collectives(rank, size, dtype, expected); });
        Ranks ranks = library_ranks({{{"tp", size}}}, own);
        ranks.run([&](Rank& rank) { all_collectives(rank, size, dtype, results); });
        expect_equal(results, expected);
        EXPECT_EQ(ranks.ledgers, threads.ledgers);
      }
    }
  }
}

/// Parts of several ranges, overlapping ones, empty ones, strided operands; on either kind of world.
void odd_partitions(Rank& rank, PerRank& results) {
  const auto tp = rank.over();
  const auto self = static_cast<std::size_t>(rank.index);
  const Partition several(12, {{{2, 4}, {9, 10}}, {{0, 2}, {10, 12}}, {{4, 9}}});
  const Partition overlapping(12, {{{0, 5}}, {{3, 9}}, {{8, 12}}});
  const Partition empty(12, {{}, {{0, 12}}, {}});
  const Partition by_token(7, {{{4, 7}}, {{0, 1}, {3, 4}}, {{1, 3}}});
  std::vector<Tensor> outs;
  for (const Partition* part : {&several, &overlapping, &empty}) {
    const Tensor wide = rank.put(varied(DType::bf16, 7, 15, self + 1));
    outs.push_back(rank.empty(DType::bf16, 7, 20).col_range(3, 15));
    tp->all_gather(rank.stream(), wide.col_range(1, 1 + part->size(rank.index)), Dim::features,
                   *part, outs.back(), at("a"));
    outs.push_back(rank.empty(DType::bf16, 7, part->size(rank.index)));
    tp->reduce_scatter(rank.stream(), rank.put(varied(DType::bf16, 7, 12, self)), Dim::features,
                       *part, {ReduceOp::sum, ReduceOrder::one_shot, HopRounding::f32}, outs.back(),
                       at("b"));
    outs.push_back(rank.empty(DType::bf16, 7, part->size(rank.index)));
    tp->all_to_all(rank.stream(), wide.row_range(0, by_token.size(rank.index)).col_range(2, 14),
                   Dim::features, *part, Dim::tokens, by_token, outs.back(), at("c"));
    outs.push_back(rank.empty(DType::bf16, by_token.size(rank.index), 12));
    tp->all_to_all(rank.stream(), wide.col_range(0, part->size(rank.index)), Dim::tokens, by_token,
                   Dim::features, *part, outs.back(), at("d"));
  }
  const Tensor wide = rank.put(varied(DType::bf16, 7, 15, self + 9));
  outs.push_back(rank.empty(DType::bf16, 7, 20).col_range(3, 15));
  tp->broadcast(rank.stream(), wide.col_range(1, 13), 2, outs.back(), at("e"));
  outs.push_back(rank.empty(DType::bf16, 7, 20).col_range(3, 15));
  if (rank.index == 1) tp->send(rank.stream(), wide.col_range(1, 13), 2, at("f"));
  if (rank.index == 2) tp->recv(rank.stream(), outs.back(), 1, at("f"));
  if (rank.index != 2) outs.pop_back();
  outs.push_back(rank.empty(DType::bf16, 3, 4));
  tp->all_reduce(rank.stream(), rank.put(varied(DType::bf16, 3, 4, self)),
                 {ReduceOp::max, ReduceOrder::ring, HopRounding::wire}, outs.back(), at("g"));
  for (const Tensor& out : outs) results.push_back(rank.get(out));
}

TEST(Library, AnyPartitionIsPacked) {
  for (const auto& own : kSums) {
    std::vector<PerRank> expected(3), results(3);
    Ranks threads(3);
    threads.run(
        [&](Rank& rank) { odd_partitions(rank, expected[static_cast<std::size_t>(rank.index)]); });
    Ranks ranks = library_ranks({{{"tp", 3}}}, own);
    ranks.run(
        [&](Rank& rank) { odd_partitions(rank, results[static_cast<std::size_t>(rank.index)]); });
    expect_equal(results, expected);
  }
}

void sum(Rank& rank, const std::string& site, std::int64_t rows = 2) {
  rank.over()->all_reduce(rank.stream(), rank.put(varied(DType::f32, rows, 8, 1)), {},
                          rank.empty(DType::f32, rows, 8), at(site));
}

TEST(Library, CallsAreCheckedBeforeItIsAsked) {
  Ranks ranks = library_ranks({{{"tp", 3}}});
  const auto message = [&](const std::function<void(Rank&)>& body) {
    try {
      ranks.run(body);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message([](Rank& rank) { sum(rank, "a", 2 + rank.index / 2); }),
              HasSubstr("disagree about the shape"));
  EXPECT_THAT(message([](Rank& rank) {
                sum(rank, "a");
                if (rank.index > 0) sum(rank, "b");
              }),
              HasSubstr("deadlock: rank 0 has returned"));
  EXPECT_EQ(message([](Rank& rank) {
              sum(rank, "a");
              if (rank.index == 1) throw ShapeError("now");
              sum(rank, "b");
            }),
            "rank 1: now");
  EXPECT_EQ(message([](Rank& rank) { sum(rank, "a"); }), "no error");  // and then works again
}

// The library's own work waits for a member that fails inside of it: the watcher ends it.
TEST(Library, AMemberThatFailsAtWorkEndsTheOthersWork) {
  Ranks ranks = library_ranks({{{"tp", 3}}}, {ReduceOrder::ring});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(ranks.run([](Rank& rank) {
    sum(rank, "a");
    const DType dtype = DType::i64;  // no sum of integers
    rank.over()->all_reduce(rank.stream(), rank.empty(dtype, 1, 3), {}, rank.empty(dtype, 1, 3),
                            at("b"));
  }),
               ShapeError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Library, RefusesWhatItCannotServe) {
  EXPECT_THROW(make_library_world(Mesh{{{"tp", 65}}}, std::make_shared<BoardLibrary>()), InputError);
  EXPECT_EQ(make_library_world(Mesh{{{"tp", 2}}}, std::make_shared<BoardLibrary>())->notes(),
            std::vector<std::string>{"by the board"});
}

TEST(Library, MovesDataBetweenProcessesToo) {
  LocalJob job(3);
  const auto library = std::make_shared<BoardLibrary>();
  const auto device = make_cpu_device();  // whose memory the board reaches
  std::vector<PerRank> expected(3), results(3);
  Ranks threads(3);
  threads.run(
      [&](Rank& rank) { odd_partitions(rank, expected[static_cast<std::size_t>(rank.index)]); });
  {
    std::vector<std::jthread> processes;
    for (int process = 0; process < 3; ++process) {
      processes.emplace_back([&, process] {
        const auto world = make_process_world(Mesh{{{"tp", 3}}},
                                              std::make_shared<LocalWire>(job, process), library);
        Ledger ledger;
        world->run([&](int index) {
          Rank rank(index, *world, *device, ledger);
          odd_partitions(rank, results[static_cast<std::size_t>(index)]);
        });
      });
    }
  }
  expect_equal(results, expected);
  EXPECT_EQ(job.left(), 0u);
}

}  // namespace
}  // namespace shardcheck::testing
