// SPDX-License-Identifier: Apache-2.0
// What the host side of a GPU program does wrong and a CPU device hides: it reads device memory, takes bytes before they
// have arrived, or lets a rank go on before its peers are ready. Each is planted in whole runs, at TP 1 and 4, and found
// every time, whatever order emu's tasks run in.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/memory.hpp"
#include "kernels/emu/emu_device.hpp"
#include "kernels/emu/runtime.hpp"
#include "model/error.hpp"
#include "tests/kernels/wrapped_device.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kTrials = 100;

/// One layer, in which each of 4 ranks has a part of everything that is cut.
Model model() {
  return make_model(
      {.heads = 4, .kv_heads = 4, .head_dim = 8, .hidden = 24, .ffn = 20, .vocab = 37, .layers = 1});
}

/// What a run came to: the report's verdict, or what was thrown.
struct Outcome {
  bool passed = false;
  std::string error;  // of a DeviceError
  std::string first;  // the first wrong tap of a failed cell
  double got = 0.0;   // an element of it
};

using MakeDevice = std::function<std::unique_ptr<Device>()>;
using Plant = std::function<Fault()>;

/// Verifies one cell of the model on a device. `seed` orders emu's tasks.
Outcome outcome_of(int tp, std::uint64_t seed, const MakeDevice& make, const Plant& plant = nullptr) {
  emu::Runtime::instance().set_seed(seed);
  VerifyParts parts = builtin_parts();
  parts.devices.add("under test", {[&](int) {
                                     std::vector<std::unique_ptr<Device>> one;
                                     one.push_back(make());
                                     return one;
                                   },
                                   [] { return std::string("emu, with a fault"); }});
  VerifyOptions options;
  options.meshes = {line(tp)};
  options.dtypes = {DType::f32};
  options.phases = {Phase::prefill};
  options.inputs.tokens = 5;
  options.device = "under test";
  options.threads = 1;
  if (plant) {
    options.fault = [&](const Program&, const RunSettings&, Phase) {
      return std::make_unique<PlantedFault>(plant());
    };
  }
  Outcome outcome;
  try {
    const VerifyReport report = verify(model(), megatron(), options, parts);
    outcome.passed = report.passed();
    if (report.cells.at(0).first) {
      outcome.first = report.cells[0].first->tap;
      outcome.got = report.cells[0].first->got;
    }
  } catch (const DeviceError& error) {
    outcome.error = error.what();
  }
  return outcome;
}

/// Each of a device's ranks has a stream: which one is whose is known from what runs on it.
class RankStreams {
 public:
  /// Notes the ranks as they start.
  Fault note(Fault fault = {}) {
    fault.prepare = [this](RankContext& context) {
      const std::lock_guard lock(mutex_);
      ranks_[&context.stream()] = context.rank();
    };
    return fault;
  }
  /// -1: of no rank of the cell under test.
  int rank_of(const Stream& stream) {
    const std::lock_guard lock(mutex_);
    const auto found = ranks_.find(&stream);
    return found == ranks_.end() ? -1 : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<const Stream*, int> ranks_;
};

TEST(PlantedDeviceFault, WithoutOneEveryOrderPasses) {
  for (const int tp : {1, 4}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const Outcome plain = outcome_of(tp, seed, make_emu_device);
      EXPECT_TRUE(plain.passed) << "seed " << seed << " " << plain.error << plain.first;
      const Outcome wrapped = outcome_of(
          tp, seed, [] { return std::make_unique<WrappedDevice>(make_emu_device()); });
      EXPECT_TRUE(wrapped.passed) << "seed " << seed << " " << wrapped.error << wrapped.first;
    }
  }
}

// ---- The host reads or writes device memory ----------------------------------------------------------------------

enum class End { died, survived, threw };

void PrintTo(End end, std::ostream* out) {
  *out << (end == End::died ? "died" : end == End::survived ? "survived" : "threw");
}

/// Runs `body` in a child process, whose messages are dropped.
End end_of(const std::function<void()>& body) {
  constexpr int kSurvived = 42, kThrew = 43;
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(kThrew);
    try {
      body();
    } catch (...) {
      _exit(kThrew);
    }
    _exit(kSurvived);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return End::threw;
  // A sanitizer turns the signal into an exit code of its own.
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS ? End::died : End::threw;
  return WEXITSTATUS(status) == kSurvived ? End::survived
         : WEXITSTATUS(status) == kThrew  ? End::threw
                                          : End::died;
}

void touch(const Tensor& tensor, bool write) {
  volatile std::byte* const at = gpu::address(tensor);
  if (write) *at = std::byte{1};
  static_cast<void>(static_cast<std::byte>(*at));
}

/// One rank touches an operand at its `turn`-th instruction: before it runs, after, or once its taps are on their way.
Fault dereference(int rank, int turn, int moment, bool write) {
  const auto count = per_rank<int>(4);
  const auto due = [=](RankContext& context, int now) {
    return context.rank() == rank && now == moment && mine(count, context) == turn;
  };
  Fault fault;
  fault.replace = [=](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs,
                      std::vector<Tensor>&) {
    ++mine(count, context);
    if (due(context, 0)) touch(inputs[0], write);
    return false;
  };
  fault.after = [=](RankContext& context, const Instruction&, const std::vector<Tensor>& outputs) {
    if (due(context, 1)) touch(outputs[0], write);
  };
  fault.between = [=](RankContext& context, const Instruction&, const std::vector<Tensor>& outputs) {
    if (due(context, 2)) touch(outputs.back(), write);
  };
  return fault;
}

TEST(PlantedDeviceFaultDeathTest, AHostDereferenceDies) {
  constexpr int kInstructions = 19;  // of one rank alone; several have more
  for (const int tp : {1, 4}) {
    EXPECT_EQ(end_of([&] {
                outcome_of(tp, 0, make_emu_device, [] { return dereference(0, -1, 0, false); });
              }),
              End::survived);
    int died = 0;
    for (int i = 0; i < kTrials; ++i) {
      const End end = end_of([&] {
        outcome_of(tp, static_cast<std::uint64_t>(i), make_emu_device,
                   [&] { return dereference(i % tp, 1 + i * 7 % kInstructions, i % 3, i % 2 == 0); });
      });
      died += end == End::died ? 1 : 0;
      EXPECT_EQ(end, End::died) << "tp " << tp << ", trial " << i;
    }
    EXPECT_EQ(died, kTrials);
  }
}

// ---- Bytes are taken before they have arrived ---------------------------------------------------------------------

/// Pinned memory that lives until the device goes, as a pool would keep it.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes) {
    gpu::check(gpu::cudaHostAlloc(&data_, bytes, gpu::cudaHostAllocDefault), "cudaHostAlloc");
  }
  ~Pinned() { static_cast<void>(gpu::cudaFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

/// The copy is enqueued as it should be; take() doesn't wait for it.
class UnwaitedRead final : public HostRead {
 public:
  UnwaitedRead(std::byte* block, const Tensor& tensor)
      : block_(block), dtype_(tensor.dtype), rows_(tensor.rows), cols_(tensor.cols) {}
  HostTensor take() override {
    HostTensor host(dtype_, {rows_, cols_});
    std::memcpy(host.mutable_data(), block_, host.bytes());
    return host;
  }

 private:
  std::byte* block_;
  DType dtype_;
  std::int64_t rows_, cols_;
};

class UnwaitedReads final : public WrappedDevice {
 public:
  /// Of the streams that `skips` names.
  UnwaitedReads(std::function<bool(const Stream&)> skips)
      : WrappedDevice(make_emu_device()), skips_(std::move(skips)) {}

  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    if (!skips_(stream) || tensor.elements() == 0) return WrappedDevice::start_read(stream, tensor);
    Tensor dense = allocate(stream, tensor.dtype, tensor.rows, tensor.cols);
    copy(stream, tensor, dense);
    const std::lock_guard lock(mutex_);
    blocks_.push_back(std::make_unique<Pinned>(static_cast<std::size_t>(tensor.bytes())));
    gpu::check(gpu::cudaMemcpyAsync(blocks_.back()->data(), gpu::address(dense),
                                    static_cast<std::size_t>(tensor.bytes()),
                                    gpu::cudaMemcpyDeviceToHost, gpu::native(stream)),
               "start_read");
    return std::make_unique<UnwaitedRead>(blocks_.back()->data(), tensor);
  }

 private:
  std::function<bool(const Stream&)> skips_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pinned>> blocks_;
};

TEST(PlantedDeviceFault, AMissingStreamWaitShows) {
  for (const int tp : {1, 4}) {
    for (int i = 0; i < kTrials; ++i) {
      // On all ranks, in any order of the tasks; and on one, whose peers' waiting runs what they need of it and no more.
      const bool all = i % 2 == 0;
      const std::uint64_t seed = all ? static_cast<std::uint64_t>(i) : 0;
      RankStreams streams;
      const Outcome outcome = outcome_of(
          tp, seed,
          [&] {
            return std::make_unique<UnwaitedReads>([&streams, all, rank = i % tp](const Stream& stream) {
              const int found = streams.rank_of(stream);
              return all ? found >= 0 : found == rank;
            });
          },
          [&] { return streams.note(); });
      EXPECT_FALSE(outcome.passed) << "tp " << tp << ", trial " << i;
      EXPECT_NE(outcome.first, "") << "tp " << tp << ", trial " << i << " " << outcome.error;
    }
  }
}

// ---- A rank goes on before its peers are ready ----------------------------------------------------------------------

class MissingEvent final : public WrappedDevice {
 public:
  /// Asked of each rank's waits in turn, from 0.
  MissingEvent(RankStreams& streams, std::function<bool(int rank, int wait)> skips)
      : WrappedDevice(make_emu_device()), streams_(streams), skips_(std::move(skips)) {}

  void wait(Stream& stream, const Event& event) override {
    const int rank = streams_.rank_of(stream);
    if (rank >= 0 && skips_(rank, waits_[static_cast<std::size_t>(rank)]++)) return;
    WrappedDevice::wait(stream, event);
  }

 private:
  RankStreams& streams_;
  std::function<bool(int rank, int wait)> skips_;
  std::vector<int> waits_ = std::vector<int>(4, 0);
};

Outcome without_waits(int tp, std::uint64_t seed, const std::function<bool(int rank, int wait)>& skips) {
  RankStreams streams;
  return outcome_of(
      tp, seed, [&] { return std::make_unique<MissingEvent>(streams, skips); },
      [&] { return streams.note(); });
}

TEST(PlantedDeviceFault, AMissingEventBetweenRanksIsFound) {
  constexpr int kRanks = 4;
  // Each of the four collectives waits until the others' operands are ready, then until they have read.
  std::vector<int> waits(kRanks, 0);
  std::mutex mutex;
  EXPECT_TRUE(without_waits(kRanks, 0, [&](int rank, int wait) {
                const std::lock_guard lock(mutex);
                waits[static_cast<std::size_t>(rank)] = wait + 1;
                return false;
              }).passed);
  EXPECT_EQ(waits, std::vector<int>(kRanks, 4 * 2 * (kRanks - 1)));

  // Ranks that never wait, and then each single wait of each rank. Not those that end the last collective: what comes
  // after it is the host's own waiting for the taps, and a peer that has been waited for has ended its reading.
  std::vector<std::function<bool(int, int)>> faults;
  for (int rank = 0; rank < kRanks; ++rank) {
    faults.push_back([rank](int at, int) { return at == rank; });
    for (int missing = 0; missing < waits[0] - (kRanks - 1); ++missing)
      faults.push_back([rank, missing](int at, int wait) { return at == rank && wait == missing; });
  }
  ASSERT_LE(faults.size(), static_cast<std::size_t>(kTrials));
  for (std::size_t i = 0; i < kTrials; ++i) {
    const Outcome outcome = without_waits(kRanks, i, faults[i % faults.size()]);
    EXPECT_FALSE(outcome.passed) << "trial " << i;
    EXPECT_THAT(outcome.error, HasSubstr("no event lies between them")) << "trial " << i;
  }

  // One rank has nobody to wait for.
  EXPECT_TRUE(without_waits(1, 0, [](int, int) { return true; }).passed);
}

}  // namespace
}  // namespace shardcheck::testing
