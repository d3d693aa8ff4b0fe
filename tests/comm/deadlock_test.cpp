// SPDX-License-Identifier: Apache-2.0
// Ranks that can't meet stop within a second, with everybody's call site; a rank that fails wakes the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "model/error.hpp"
#include "tests/comm/ranks.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What World::run throws, which must be an E and nothing else, within a second.
template <typename E>
std::string stopped(Ranks& ranks, const std::function<void(Rank&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  std::string message = "no error";
  try {
    ranks.run(body);
  } catch (const std::exception& error) {
    EXPECT_TRUE(typeid(error) == typeid(E)) << typeid(error).name() << ": " << error.what();
    message = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  return message;
}

void all_reduce(Rank& rank, const std::string& site, const std::vector<std::string>& axes = {"tp"},
                std::int64_t rows = 2) {
  const Tensor out = rank.empty(DType::f32, rows, 8);
  rank.over(axes)->all_reduce(rank.stream(), rank.put(varied(DType::f32, rows, 8, 1)), {}, out,
                              at(site));
}

TEST(Deadlock, RanksCallInDifferentOrder) {
  Ranks ranks(2);
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [](Rank& rank) {
                                   all_reduce(rank, rank.index == 0 ? "o_proj" : "down_proj");
                                   all_reduce(rank, rank.index == 0 ? "down_proj" : "o_proj");
                                 }),
              AllOf(HasSubstr("rank 0: all_reduce [2, 8] f32 at o_proj"),
                    HasSubstr("rank 1: all_reduce [2, 8] f32 at down_proj")));
}

TEST(Deadlock, OneRankReturnsEarly) {
  Ranks ranks(2);
  EXPECT_THAT(
      stopped<CommError>(ranks,
                         [](Rank& rank) {
                           all_reduce(rank, "layers.0.o_proj");
                           if (rank.index == 0) all_reduce(rank, "layers.0.down_proj");
                         }),
      AllOf(
          HasSubstr("deadlock: rank 1 has returned while rank 0 waits for it"),
          HasSubstr("rank 0 waits in all_reduce [2, 8] f32 at layers.0.down_proj (prefill step 0) "
                    "over tp for rank 1"),
          HasSubstr(
              "rank 1 has returned, its last call was all_reduce [2, 8] f32 at layers.0.o_proj")));
}

// Rank 2 computes until the waiting ranks have been told: they may not have to wait for its end.
TEST(Deadlock, AnEarlyReturnIsSeenWhileOthersStillRun) {
  Ranks ranks(3);
  std::atomic<bool> told = false;
  const std::string message = stopped<CommError>(ranks, [&](Rank& rank) {
    if (rank.index == 1) return;
    if (rank.index == 2) {
      while (!told) std::this_thread::yield();
      return;
    }
    try {
      all_reduce(rank, "norm");
    } catch (const CommError&) {
      told = true;
      throw;
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 has returned and has called nothing"),
                             HasSubstr("rank 0 waits in all_reduce [2, 8] f32 at norm"),
                             HasSubstr("rank 2 is running")));
}

TEST(Deadlock, RanksWaitInDifferentGroups) {
  Ranks ranks(Mesh{{{"dp", 2}, {"tp", 2}}});
  EXPECT_THAT(
      stopped<CommError>(ranks,
                         [](Rank& rank) {
                           const bool first = rank.index == 0 || rank.index == 3;
                           all_reduce(rank, first ? "loss" : "norm", {first ? "dp" : "tp"});
                         }),
      AllOf(
          HasSubstr("every live rank waits and no group is complete"),
          HasSubstr(
              "rank 0 waits in all_reduce [2, 8] f32 at loss (prefill step 0) over dp for rank 2"),
          HasSubstr(
              "rank 1 waits in all_reduce [2, 8] f32 at norm (prefill step 0) over tp for rank 0"),
          HasSubstr("rank 3 waits in all_reduce [2, 8] f32 at loss (prefill step 0) over dp for "
                    "rank 1")));
}

TEST(Deadlock, BothSendFirst) {
  Ranks ranks(2);
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [](Rank& rank) {
                                   const Tensor value = rank.put(varied(DType::f32, 1, 4, 1));
                                   rank.over()->send(rank.stream(), value, 1 - rank.index,
                                                     at("layers.1"));
                                 }),
              AllOf(HasSubstr("rank 0 waits in send to rank 1 [1, 4] f32 at layers.1"),
                    HasSubstr("rank 1 waits in send to rank 0")));
}

TEST(Deadlock, ACollectiveDoesNotMeetAMessage) {
  Ranks ranks(2);
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [](Rank& rank) {
                                   if (rank.index == 0) return all_reduce(rank, "norm");
                                   rank.over()->recv(rank.stream(), rank.empty(DType::f32, 2, 8), 0,
                                                     at("layers.1"));
                                 }),
              AllOf(HasSubstr("rank 0 waits in all_reduce"),
                    HasSubstr("rank 1 waits in recv from rank 0")));
}

// The ranks that were waiting get an error too, which names their own call and the rank that failed.
TEST(Failure, OfOneRankWakesTheOthers) {
  Ranks ranks(4);
  std::vector<std::string> seen(4);
  const std::string message = stopped<InputError>(ranks, [&](Rank& rank) {
    all_reduce(rank, "o_proj");
    if (rank.index == 2) throw InputError("layers.1: a weight is NaN");
    try {
      all_reduce(rank, "down_proj");
    } catch (const CommError& error) {
      seen[static_cast<std::size_t>(rank.index)] = error.what();
      throw;
    }
  });
  EXPECT_EQ(message, "rank 2: layers.1: a weight is NaN");
  for (const std::size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(
        seen[rank],
        "all_reduce [2, 8] f32 at down_proj (prefill step 0): stopped, because rank 2 failed: "
        "layers.1: a weight is NaN");
  }
}

class OddError : public CommError {
 public:
  OddError() : CommError("odd") {}
};

TEST(Failure, KeepsItsType) {
  const auto thrown_by_rank_1 = [](const auto& error) {
    return [error](Rank& rank) {
      if (rank.index == 1) throw error;
      all_reduce(rank, "norm");
    };
  };
  Ranks ranks(2);
  EXPECT_EQ(stopped<ShapeError>(ranks, thrown_by_rank_1(ShapeError("s"))), "rank 1: s");
  EXPECT_EQ(stopped<PlacementError>(ranks, thrown_by_rank_1(PlacementError("p"))), "rank 1: p");
  EXPECT_EQ(stopped<CommError>(ranks, thrown_by_rank_1(CommError("c"))), "rank 1: c");
  EXPECT_EQ(stopped<std::logic_error>(ranks, thrown_by_rank_1(std::logic_error("l"))), "rank 1: l");
  EXPECT_EQ(stopped<OddError>(ranks, thrown_by_rank_1(OddError())), "odd");
  EXPECT_THROW(ranks.run(thrown_by_rank_1(42)), int);
}

// What goes wrong while data moves (a sum of integers is refused by the device), whoever does the work.
TEST(Failure, DuringTheWork) {
  for (const std::int64_t rows : {2, 5000}) {
    Ranks ranks(4);
    EXPECT_THAT(stopped<ShapeError>(ranks,
                                    [&](Rank& rank) {
                                      const Tensor in = rank.empty(DType::i64, rows, 16);
                                      rank.over()->all_reduce(rank.stream(), in, {},
                                                              rank.empty(DType::i64, rows, 16),
                                                              at("ids"));
                                    }),
                AllOf(StartsWith("rank "), HasSubstr("reduce_n")));
  }
}

TEST(Failure, IsNotHiddenByARankThatSwallowsIt) {
  Ranks ranks(2);
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [](Rank& rank) {
                                   try {
                                     all_reduce(rank, "norm", {"tp"}, rank.index + 1);
                                   } catch (const CommError&) {
                                   }
                                 }),
              HasSubstr("disagree about the shape"));
}

// Some ranks are in the middle of a large copy when another one fails.
TEST(Failure, AtAnyMomentEndsTheRun) {
  const HostTensor value = varied(DType::f32, 4000, 64, 1);
  for (int round = 0; round < 40; ++round) {
    Ranks ranks(Mesh{{{"dp", 2}, {"tp", 3}}});
    const std::string message = stopped<InputError>(ranks, [&](Rank& rank) {
      const auto tp = rank.over({"tp"}), dp = rank.over({"dp"});
      const Tensor in = rank.put(value), out = rank.empty(DType::f32, 4000, 64);
      for (int i = 0; i < 10; ++i) {
        if (rank.index == round % 6 && i == round % 10) throw InputError("now");
        tp->all_reduce(rank.stream(), in, {}, out, at("a"));
        dp->all_reduce(rank.stream(), in.row_range(0, 3), {}, out.row_range(0, 3), at("b"));
      }
    });
    EXPECT_EQ(message, "rank " + std::to_string(round % 6) + ": now");
  }
}

TEST(World, RunsAgainAfterAFailure) {
  Ranks ranks(2);
  std::vector<std::unique_ptr<Communicator>> kept(2);
  for (int round = 0; round < 3; ++round) {
    stopped<CommError>(ranks, [&](Rank& rank) {
      auto& tp = kept[static_cast<std::size_t>(rank.index)];
      if (!tp) tp = rank.over();
      const Tensor out = rank.empty(DType::f32, 2, 8);
      tp->all_reduce(rank.stream(), rank.put(varied(DType::f32, 2, 8, 1)), {}, out, at("a"));
      if (rank.index == 0) all_reduce(rank, "b");
    });
  }
}

TEST(World, RefusesToMeetOutsideOfRun) {
  Ranks ranks(2);
  Rank rank(0, ranks.world(), ranks.device(), ranks.ledgers[0]);
  EXPECT_THROW(all_reduce(rank, "norm"), CommError);
}

TEST(World, RefusesARunInsideOfARun) {
  Ranks ranks(2);
  EXPECT_THAT(stopped<std::logic_error>(ranks,
                                        [&](Rank& rank) {
                                          if (rank.index == 1) ranks.run([](Rank&) {});
                                        }),
              HasSubstr("World::run was called during a run"));
}

}  // namespace
}  // namespace shardcheck::testing
