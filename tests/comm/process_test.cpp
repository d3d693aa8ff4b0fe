// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes, over a wire between threads: same bits and records as thread ranks, and no end without a
// message that all of them have.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "kernels/cpu/cpu_device.hpp"
#include "sharded/comm/parcel.hpp"
#include "sharded/comm/worlds.hpp"
#include "tests/comm/all_collectives.hpp"
#include "tests/comm/local_wire.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// One world per process, each with its own device. `extra` processes have no rank.
class Processes {
 public:
  explicit Processes(const Mesh& mesh, int extra = 0)
      : ledgers(static_cast<std::size_t>(mesh.ranks())), job_(mesh.ranks() + extra) {
    for (int process = 0; process < job_.processes(); ++process) {
      worlds_.push_back(make_process_world(mesh, std::make_shared<LocalWire>(job_, process)));
      devices_.push_back(make_cpu_device());
    }
  }
  explicit Processes(int size) : Processes(Mesh{{{"tp", size}}}) {}

  /// The message of each process's exception; empty where there was none.
  std::vector<std::string> run(const std::function<void(Rank&)>& body) {
    std::vector<std::string> messages(worlds_.size());
    each([&](std::size_t process) {
      try {
        worlds_[process]->run([&](int rank) {
          EXPECT_EQ(static_cast<std::size_t>(rank), process);
          Rank context(rank, *worlds_[process], *devices_[process], ledgers[process]);
          body(context);
        });
      } catch (const std::exception& error) {
        messages[process] = error.what();
      }
    });
    return messages;
  }
  void each(const std::function<void(std::size_t process)>& body) {
    std::vector<std::jthread> threads;
    for (std::size_t process = 0; process < worlds_.size(); ++process)
      threads.emplace_back([&, process] { body(process); });
  }
  World& world(std::size_t process) { return *worlds_[process]; }
  std::size_t left() const { return job_.left(); }

  std::vector<Ledger> ledgers;

 private:
  LocalJob job_;
  std::vector<std::unique_ptr<World>> worlds_;
  std::vector<std::unique_ptr<Device>> devices_;
};

void sum(Rank& rank, const std::string& site, const std::vector<std::string>& axes = {"tp"},
         std::int64_t rows = 2) {
  const Tensor in = rank.put(varied(DType::f32, rows, 8, static_cast<std::uint64_t>(rank.index)));
  rank.over(axes)->all_reduce(rank.stream(), in, {}, rank.empty(DType::f32, rows, 8), at(site));
}

TEST(Processes, HaveTheBitsAndRecordsOfThreads) {
  for (const int size : {2, 3, 4, 8}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Ranks threads(size);
      Results expected = no_results(size), results = no_results(size);
      threads.run([&](Rank& rank) { all_collectives(rank, size, dtype, expected); });
      Processes processes(size);
      EXPECT_THAT(processes.run([&](Rank& rank) { all_collectives(rank, size, dtype, results); }),
                  Each(""));
      EXPECT_EQ(processes.ledgers, threads.ledgers);
      EXPECT_EQ(processes.left(), 0u);
      for (std::size_t i = 0; i < results.size(); ++i) {
        for (std::size_t rank = 0; rank < results[i].size(); ++rank) {
          EXPECT_TRUE(results[i][rank].bitwise_equal(expected[i][rank]))
              << "collective " << i << ", rank " << rank;
        }
      }
    }
  }
}

TEST(Processes, GroupsOfAMeshAreApart) {
  Processes processes(Mesh{{{"dp", 2}, {"tp", 2}}});
  EXPECT_THAT(processes.run([](Rank& rank) {
    for (int i = 0; i < 20; ++i) {
      sum(rank, "a", {"tp"});
      sum(rank, "b", {"dp"});
      sum(rank, "c", {"dp", "tp"});
    }
  }),
              Each(""));
}

TEST(Processes, WithoutARankHaveNothingToDo) {
  Processes processes(Mesh{{{"tp", 2}}}, 2);
  EXPECT_THAT(processes.run([](Rank& rank) { sum(rank, "a"); }), Each(""));
  processes.each([&](std::size_t process) {
    EXPECT_EQ(processes.world(process).judges(), process == 0);
    const std::vector<std::string> all = processes.world(process).gather(fmt::format("of {}", process));
    EXPECT_EQ(all, process == 0 ? (std::vector<std::string>{"of 0", "of 1"})
                                : std::vector<std::string>{});
  });
  EXPECT_EQ(processes.left(), 0u);
}

TEST(Processes, MustBeEnoughForTheMesh) {
  LocalJob job(2);
  try {
    make_process_world(Mesh{{{"tp", 4}}}, std::make_shared<LocalWire>(job, 0));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "tp=4 has 4 ranks, but the job has 2 processes; start it with mpirun -n 4");
  }
}

TEST(Processes, ThatDisagreeAllGetTheSentence) {
  Processes processes(3);
  EXPECT_THAT(processes.run([](Rank& rank) { sum(rank, "o_proj", {"tp"}, 2 + rank.index / 2); }),
              Each(AllOf(HasSubstr("disagree about the shape of the whole tensor"),
                         HasSubstr("rank 0: all_reduce [2, 8] f32 at o_proj"),
                         HasSubstr("rank 2: all_reduce [3, 8] f32 at o_proj"))));
  EXPECT_EQ(processes.left(), 0u);
  EXPECT_THAT(processes.run([](Rank& rank) { sum(rank, "o_proj"); }), Each(""));  // and then work again
}

TEST(Processes, PartitionsAreCompared) {
  Processes processes(2);
  EXPECT_THAT(processes.run([](Rank& rank) {
    const Partition part(4, rank.index == 0 ? std::vector<Ranges>{{{0, 2}}, {{2, 4}}}
                                            : std::vector<Ranges>{{{0, 1}, {3, 4}}, {{1, 3}}});
    rank.over()->all_gather(rank.stream(), rank.put(varied(DType::f32, 2, 2, 1)), Dim::features,
                            part, rank.empty(DType::f32, 2, 4), at("lm_head"));
  }),
              Each(HasSubstr("disagree about the partition")));
}

TEST(Processes, OneThatFailsStopsAll) {
  for (int fails = 0; fails < 3; ++fails) {
    Processes processes(3);
    EXPECT_THAT(processes.run([&](Rank& rank) {
      sum(rank, "a");
      if (rank.index == fails) throw ShapeError("now");
      sum(rank, "b");
    }),
                Each(fmt::format("rank {}: now", fails)));
    EXPECT_EQ(processes.left(), 0u);
  }
}

// Rank 3 fails while rank 0 waits for rank 1, which waits for rank 3.
TEST(Processes, AFailureReachesRanksThatWaitForOthers) {
  Processes processes(Mesh{{{"dp", 2}, {"tp", 2}}});
  EXPECT_THAT(processes.run([](Rank& rank) {
    if (rank.index == 3) throw InputError("now");
    sum(rank, "a", {rank.index == 0 ? "tp" : rank.index == 1 ? "dp" : "tp"});
  }),
              Each("rank 3: now"));
}

TEST(Processes, OneThatReturnsEarlyIsSeen) {
  Processes processes(2);
  EXPECT_THAT(processes.run([](Rank& rank) {
    sum(rank, "a");
    if (rank.index == 0) sum(rank, "b");
  }),
              Each(AllOf(HasSubstr("deadlock: rank 1 has returned while rank 0 waits for it"),
                         HasSubstr("at b"))));
}

TEST(Processes, CallsOfDifferentGroupsAreADeadlock) {
  Processes processes(Mesh{{{"dp", 2}, {"tp", 2}}});
  EXPECT_THAT(processes.run([](Rank& rank) {
    sum(rank, "x",
        rank.index == 0 ? std::vector<std::string>{"tp"} : std::vector<std::string>{"dp", "tp"});
  }),
              Each(AllOf(HasSubstr("deadlock"), HasSubstr("dp,tp"))));
}

TEST(Processes, ASwallowedErrorIsNotHidden) {
  Processes processes(2);
  EXPECT_THAT(processes.run([](Rank& rank) {
    try {
      sum(rank, "a", {"tp"}, 1 + rank.index);
    } catch (const CommError&) {
    }
  }),
              Each(HasSubstr("disagree about the shape")));
}

// Each waits for one that waits for another: nobody can see it, so the clock does.
TEST(Processes, ACircleEndsByTheClock) {
  ::setenv("SHARDCHECK_TIMEOUT", "0.3", 1);
  Processes processes(Mesh{{{"dp", 2}, {"tp", 2}}});
  ::unsetenv("SHARDCHECK_TIMEOUT");
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> messages = processes.run([](Rank& rank) {
    const bool first = rank.index == 0 || rank.index == 3;
    sum(rank, first ? "loss" : "norm", {first ? "dp" : "tp"});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_THAT(messages,
              Each(AllOf(HasSubstr("aborted: rank "), HasSubstr("has waited 0.301 s for rank"),
                         HasSubstr("SHARDCHECK_TIMEOUT"))));
}

TEST(Processes, ThatRunDifferentMeshesAreToldApart) {
  LocalJob job(2);
  std::vector<std::string> messages(2);
  {
    std::vector<std::jthread> threads;
    for (int process = 0; process < 2; ++process) {
      threads.emplace_back([&, process] {
        const Mesh mesh{{{process == 0 ? "tp" : "dp", 2}}};
        const auto world = make_process_world(mesh, std::make_shared<LocalWire>(job, process));
        try {
          world->run([](int) {});
        } catch (const CommError& error) {
          messages[static_cast<std::size_t>(process)] = error.what();
        }
      });
    }
  }
  EXPECT_THAT(messages, Each(HasSubstr("all processes must run the same command")));
}

TEST(Timeout, MustBeSeconds) {
  for (const char* const bad : {"", "soon", "0", "-1", "nan", "5s", "1e9"}) {
    ::setenv("SHARDCHECK_TIMEOUT", bad, 1);
    EXPECT_THROW(LocalJob job(2);
                 make_process_world(Mesh{{{"tp", 2}}}, std::make_shared<LocalWire>(job, 0)), InputError)
        << bad;
  }
  ::unsetenv("SHARDCHECK_TIMEOUT");
}

TEST(Parcel, KeepsValuesAndNoticesMissingBytes) {
  const HostTensor host = varied(DType::bf16, 3, 5, 1);
  const std::string bytes = ParcelWriter().value(7).text("seven").tensor(host).tensor({}).take();
  ParcelReader in(bytes);
  EXPECT_EQ(in.value<int>(), 7);
  EXPECT_EQ(in.text(), "seven");
  EXPECT_TRUE(in.tensor().bitwise_equal(host));
  EXPECT_TRUE(in.tensor().shape().empty());
  EXPECT_TRUE(in.empty());
  ParcelReader cut(std::string_view(bytes).substr(0, 30));
  cut.value<int>();
  cut.text();
  EXPECT_THROW(cut.tensor(), CommError);
}

}  // namespace
}  // namespace shardcheck::testing
