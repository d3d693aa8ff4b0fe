// SPDX-License-Identifier: Apache-2.0
// A program whose ranks are processes: the one that judges gets every rank's taps, records and mismatches, as if all had
// run in it. Processes are played by threads.
#include <gtest/gtest.h>

#include <thread>

#include "model/error.hpp"
#include "sharded/comm/worlds.hpp"
#include "tests/comm/local_wire.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

constexpr int kRanks = 3;

/// Overwrites a value of one rank between its producer and its consumer.
class Overwriter final : public Interposer {
 public:
  explicit Overwriter(int rank) : rank_(rank) {}
  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    if (context.rank() == rank_ && instruction.site == "layers.0.self_attn.o_proj")
      context.device().poison(context.stream(), outputs[0].row_range(0, 1));
  }

 private:
  int rank_;
};

/// One rank has an instruction whose local shapes don't fit.
class Misfit final : public Interposer {
 public:
  explicit Misfit(int rank) : rank_(rank) {}
  void after(RankContext& context, const Instruction& instruction, std::vector<Tensor>&) override {
    if (context.rank() == rank_ && instruction.site == "layers.0.mlp.down_proj")
      throw ShapeError("no fit");
  }

 private:
  int rank_;
};

struct Case {
  Case() : program(program_of(model, megatron(), line(kRanks), ops)) {}
  Registry ops = builtin_ops();
  Model model = make_model({});
  Program program;
  std::vector<Step> steps{prefill({3, 5}, 257)};

  RunResult run(World& world, TapSink& taps, Interposer* interposer) const {
    const auto device = builtin_devices().make("cpu");
    WeightStore weights(model, DType::f32);
    RunOptions options;
    options.taps = &taps;
    options.interposer = interposer;
    options.check_wiring = true;
    Device* const devices[] = {device.get()};
    return run_program(program, world, devices, weights, {}, steps, options);
  }
  RunResult run_threads(TapSink& taps, Interposer* interposer = nullptr) const {
    return run(*builtin_worlds().make("threads", line(kRanks)), taps, interposer);
  }
  /// Of process 0; the others' sinks must stay empty.
  RunResult run_processes(TapSink& taps, Interposer* interposer = nullptr) const {
    testing::LocalJob job(kRanks + 1);
    RunResult result;
    {
      std::vector<std::jthread> processes;
      for (int process = 0; process <= kRanks; ++process) {
        processes.emplace_back([&, process] {
          const auto world = make_process_world(line(kRanks),
                                                std::make_shared<testing::LocalWire>(job, process));
          if (process == 0) {
            result = run(*world, taps, interposer);
            return;
          }
          Taps unused(line(kRanks));
          run(*world, unused, interposer);
          EXPECT_TRUE(unused.parts().empty());
        });
      }
    }
    EXPECT_EQ(job.left(), 0u);
    return result;
  }
};

void expect_same(const Taps& processes, const Taps& threads) {
  ASSERT_EQ(processes.parts().size(), threads.parts().size());
  for (const auto& [key, parts] : threads.parts()) {
    const Parts& theirs = processes.parts().at(key);
    EXPECT_EQ(theirs.layout, parts.layout);
    ASSERT_EQ(theirs.ranks.size(), parts.ranks.size());
    for (std::size_t rank = 0; rank < parts.ranks.size(); ++rank)
      EXPECT_TRUE(theirs.ranks[rank].bitwise_equal(parts.ranks[rank]))
          << std::get<2>(key) << " of rank " << rank;
  }
}

TEST(Processes, GiveTheResultOfThreads) {
  const Case one;
  Taps of_threads(line(kRanks)), of_processes(line(kRanks));
  const RunResult threads = one.run_threads(of_threads);
  const RunResult processes = one.run_processes(of_processes);
  expect_same(of_processes, of_threads);
  EXPECT_EQ(processes.ledgers, threads.ledgers);
  EXPECT_EQ(processes.wiring_checks, threads.wiring_checks);
  EXPECT_TRUE(processes.wiring.empty());
  EXPECT_FALSE(processes.ended.has_value());
}

TEST(Processes, AMismatchOfAnyRankIsReported) {
  const Case one;
  for (int rank = 0; rank < kRanks; ++rank) {
    Overwriter overwriter(rank);
    Taps taps(line(kRanks));
    const RunResult result = one.run_processes(taps, &overwriter);
    ASSERT_EQ(result.wiring.size(), 1u);
    EXPECT_EQ(result.wiring[0].rank, rank);
    EXPECT_EQ(result.wiring[0].value, "layers.0.self_attn.o_proj");
    EXPECT_EQ(result.wiring[0].consumer, "layers.0.self_attn.resid");
  }
}

TEST(Processes, AForcedRunEndsWhereARankCannotGoOn) {
  Case one;
  one.program.forced_shapes = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    Misfit misfit(rank);
    Taps of_threads(line(kRanks)), of_processes(line(kRanks));
    const RunResult threads = one.run_threads(of_threads, &misfit);
    const RunResult processes = one.run_processes(of_processes, &misfit);
    ASSERT_TRUE(processes.ended.has_value());
    EXPECT_EQ(processes.ended->site, threads.ended->site);
    EXPECT_EQ(processes.ended->order, threads.ended->order);
    EXPECT_EQ(processes.ended->ranks, std::vector<int>{rank});
    EXPECT_EQ(processes.ended->message, "no fit");
    EXPECT_FALSE(of_processes.parts().empty());
  }
}

}  // namespace
}  // namespace shardcheck
