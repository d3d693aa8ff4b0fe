// SPDX-License-Identifier: Apache-2.0
// Whole programs on emu: the same taps and ledgers as on the cpu, and what a rank's host code may not do is caught every
// time. A missing event between ranks is among the faults of tests/comm/events_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/memory.hpp"
#include "kernels/emu/runtime.hpp"
#include "model/error.hpp"
#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

/// A prompt of 5 and one of 3 tokens, then two tokens more of each.
std::vector<Step> some_steps(std::int64_t vocab) {
  std::vector<Step> steps = {prefill({5, 3}, vocab)};
  for (int i = 0; i < 2; ++i) {
    Step decode;
    decode.phase = Phase::decode;
    decode.index = i;
    decode.sequences = {{0, 5 + i, 1}, {1, 3 + i, 1}};
    decode.ids = varied_ids(2, vocab, 3 + i);
    steps.push_back(std::move(decode));
  }
  return steps;
}

RunSetup on(const std::string& device, DType dtype) {
  return {.settings = {dtype, dtype, {}}, .device = device};
}

TEST(EmuRun, HasTheTapsAndLedgersOfTheCpu) {
  const Registry ops = builtin_ops();
  for (const SmallModel& shape :
       {SmallModel{}, SmallModel{.model_type = "gpt2", .heads = 5, .kv_heads = 5},
        SmallModel{.model_type = "qwen2", .biases = true}}) {
    const Model model = make_model(shape);
    const std::vector<Step> steps = some_steps(shape.vocab);
    for (const int tp : {1, 2, 3}) {
      for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const Ran cpu = run(model, megatron(), line(tp), steps, ops, on("cpu", dtype));
        const Ran emu = run(model, megatron(), line(tp), steps, ops, on("emu", dtype));
        EXPECT_EQ(emu.result.ledgers, cpu.result.ledgers);
        EXPECT_EQ(emu.result.wiring_checks, cpu.result.wiring_checks);
        ASSERT_EQ(emu.taps->parts().size(), cpu.taps->parts().size());
        for (const auto& [key, parts] : cpu.taps->parts()) {
          const auto found = emu.taps->parts().find(key);
          ASSERT_NE(found, emu.taps->parts().end()) << std::get<2>(key);
          EXPECT_EQ(found->second.layout, parts.layout) << std::get<2>(key);
          for (std::size_t rank = 0; rank < parts.ranks.size(); ++rank) {
            EXPECT_EQ(found->second.ranks[rank].dtype(), parts.ranks[rank].dtype())
                << std::get<2>(key);
            EXPECT_EQ(found->second.ranks[rank].shape(), parts.ranks[rank].shape())
                << std::get<2>(key);
          }
        }
        if (dtype == DType::f64) {
          EXPECT_LE(difference(cpu.logits(), emu.logits()), summation_limit(model.config()));
          EXPECT_LE(difference(cpu.logits(Phase::decode, 1), emu.logits(Phase::decode, 1)),
                    summation_limit(model.config()));
        }
      }
    }
  }
}

TEST(EmuRun, GivesTheSameBitsInEveryOrderOfItsTasks) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const std::vector<Step> steps = some_steps(257);
  std::vector<std::unique_ptr<Ran>> runs;
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    emu::Runtime::instance().set_seed(seed);
    runs.push_back(
        std::make_unique<Ran>(run(model, megatron(), line(3), steps, ops, on("emu", DType::bf16))));
  }
  emu::Runtime::instance().set_seed(0);
  for (const auto& [key, parts] : runs[0]->taps->parts()) {
    for (std::size_t i = 1; i < runs.size(); ++i) {
      const Parts& others = runs[i]->taps->parts().at(key);
      for (std::size_t rank = 0; rank < parts.ranks.size(); ++rank)
        EXPECT_TRUE(others.ranks[rank].bitwise_equal(parts.ranks[rank])) << std::get<2>(key);
    }
  }
}

// ---- planted faults ----

/// Does something after one instruction of one rank, each time it comes by.
class AfterInstruction final : public Interposer {
 public:
  using Act = std::function<void(RankContext&, const Tensor& output)>;
  AfterInstruction(int rank, int instruction, Act act)
      : rank_(rank), instruction_(instruction), act_(std::move(act)) {}

  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    const auto& all = context.program().instructions.at(context.step().phase);
    if (context.rank() != rank_ ||
        &instruction != &all[static_cast<std::size_t>(instruction_) % all.size()])
      return;
    if (outputs[0].elements() > 0) act_(context, outputs[0]);
    acted_ = acted_ || outputs[0].elements() > 0;
  }
  bool acted() const { return acted_; }

 private:
  const int rank_, instruction_;
  const Act act_;
  bool acted_ = false;
};

/// Copies on a second stream what the rank's own stream has just been told to compute.
class SecondStream {
 public:
  explicit SecondStream(bool waits) : waits_(waits) {}

  void operator()(RankContext& context, const Tensor& output) {
    Device& device = context.device();
    if (stream_ == nullptr) stream_ = device.make_stream();
    if (waits_) device.wait(*stream_, *device.record(context.stream()));
    const Tensor copied = device.allocate(*stream_, output.dtype, output.rows, output.cols);
    device.copy(*stream_, output, copied);
    if (waits_)
      device.wait(context.stream(), *device.record(*stream_));  // before the output's memory is used again
  }

 private:
  const bool waits_;
  std::shared_ptr<Stream> stream_;
};

std::string failure_of(int tp, Interposer& interposer, const Registry& ops) {
  static const Model model = make_model({.layers = 1});
  RunSetup setup = on("emu", DType::f32);
  setup.interposer = &interposer;
  setup.check_wiring = false;
  try {
    run(model, megatron(), line(tp), {prefill({4}, 257)}, ops, setup);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

TEST(EmuRun, AMissingStreamWaitIsCaughtEveryTime) {
  const Registry ops = builtin_ops();
  for (const int tp : {1, 4}) {
    int planted = 0, caught = 0;
    for (int i = 0; planted < 100; ++i) {
      emu::Runtime::instance().set_seed(static_cast<std::uint64_t>(i));
      for (const bool waits : {true, false}) {
        if (waits && i % 10 != 0) continue;
        AfterInstruction fault(i % tp, i / tp, SecondStream(waits));
        const std::string failure = failure_of(tp, fault, ops);
        if (!fault.acted()) continue;
        if (waits) {
          EXPECT_EQ(failure, "");
        } else {
          ++planted;
          caught += failure.find("no event") != std::string::npos;
          EXPECT_THAT(failure, HasSubstr("no event"));
        }
      }
    }
    EXPECT_EQ(caught, planted) << "tp " << tp;
  }
  emu::Runtime::instance().set_seed(0);
}

/// Runs in a process of its own. True if it died there.
bool dies(const std::function<void()>& act) {
  const pid_t child = fork();
  if (child == 0) {
    close(STDERR_FILENO);
    act();
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) ||
         WEXITSTATUS(status) != 0;  // an address sanitizer turns the signal into an exit code
}

TEST(EmuRun, AHostDereferenceDiesEveryTime) {
  const Registry ops = builtin_ops();
  const auto read_by_host = [](RankContext&, const Tensor& output) {
    static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(gpu::address(output)));
  };
  const auto nothing = [](RankContext&, const Tensor&) {};
  for (const int tp : {1, 4}) {
    int planted = 0, died = 0;
    for (int i = 0; i < 100; ++i) {
      // Instructions whose output is empty on that rank are no place for the fault.
      AfterInstruction look(i % tp, i / tp, nothing);
      if (i < 8) {
        EXPECT_FALSE(dies([&] { failure_of(tp, look, ops); }));
      }
      AfterInstruction fault(i % tp, i / tp, read_by_host);
      died += dies([&] {
        failure_of(tp, fault, ops);
        if (!fault.acted()) _exit(3);
      });
      ++planted;
    }
    EXPECT_EQ(died, planted) << "tp " << tp;
  }
}

}  // namespace
}  // namespace shardcheck
