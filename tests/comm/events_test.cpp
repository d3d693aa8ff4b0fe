// SPDX-License-Identifier: Apache-2.0
// Ranks that meet by events: on devices whose calls return before their work is done. Same bits as on the cpu, same
// errors, no hang, and every wait between ranks is needed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "kernels/emu/emu_device.hpp"
#include "model/error.hpp"
#include "tests/comm/all_collectives.hpp"
#include "tests/comm/late_device.hpp"
#include "tests/comm/faulty_devices.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Mesh line(int ranks) { return {{{"tp", ranks}}}; }

Results run_all(Ranks& ranks, int size, DType dtype) {
  Results results = no_results(size);
  ranks.run([&](Rank& rank) { all_collectives(rank, size, dtype, results); });
  return results;
}

/// A device whose calls return early, by name and seed.
struct Kind {
  std::string name;
  std::unique_ptr<Device> (*make)(std::uint64_t seed);
};
std::unique_ptr<Device> make_emu(std::uint64_t) { return make_emu_device(); }

class Events : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Device> device(std::uint64_t seed = 1) { return GetParam().make(seed); }
};

TEST_P(Events, CollectivesHaveTheBitsOfTheCpu) {
  for (const int size : {2, 3, 4, 8}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Ranks on_cpu(size);
      const Results expected = run_all(on_cpu, size, dtype);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        Ranks ranks(line(size), device(seed));
        const Results results = run_all(ranks, size, dtype);
        EXPECT_EQ(ranks.ledgers, on_cpu.ledgers);
        for (std::size_t i = 0; i < results.size(); ++i) {
          for (std::size_t rank = 0; rank < results[i].size(); ++rank) {
            EXPECT_TRUE(results[i][rank].bitwise_equal(expected[i][rank]))
                << name(dtype) << ", collective " << i << " on rank " << rank << " of " << size;
          }
        }
      }
    }
  }
}

/// What the run throws, within ten seconds.
template <typename E>
std::string stopped(Ranks& ranks, const std::function<void(Rank&)>& body) {
  const auto start = std::chrono::steady_clock::now();
  std::string message = "no error";
  try {
    ranks.run(body);
  } catch (const E& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  return message;
}

void sum(Rank& rank, const Tensor& in, const std::string& site) {
  rank.over()->all_reduce(rank.stream(), in, {}, rank.empty(in.dtype, in.rows, in.cols), at(site));
}

TEST_P(Events, RanksThatCannotMeetStop) {
  Ranks ranks(line(4), device());
  const auto in = [](Rank& rank, std::int64_t rows = 2) {
    return rank.put(varied(DType::f32, rows, 8, 1));
  };
  EXPECT_THAT(stopped<CommError>(
                  ranks, [&](Rank& rank) { sum(rank, in(rank, 1 + rank.index / 3), "o_proj"); }),
              HasSubstr("disagree about the shape"));
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [&](Rank& rank) {
                                   sum(rank, in(rank), "o_proj");
                                   if (rank.index != 2) sum(rank, in(rank), "down_proj");
                                 }),
              AllOf(HasSubstr("deadlock: rank 2 has returned"), HasSubstr("down_proj")));
  EXPECT_THAT(stopped<CommError>(ranks,
                                 [&](Rank& rank) {
                                   const Tensor value = in(rank);
                                   rank.over()->send(rank.stream(), value, rank.index ^ 1, at("x"));
                                 }),
              HasSubstr("every live rank waits and no group is complete"));
  ranks.run([&](Rank& rank) { sum(rank, in(rank), "o_proj"); });  // and then works again
}

TEST_P(Events, ARankThatDiesBeforeItsCallEndsTheRun) {
  for (int dies = 0; dies < 4; ++dies) {
    Ranks ranks(line(4), device());
    EXPECT_EQ(stopped<InputError>(ranks,
                                  [&](Rank& rank) {
                                    const Tensor in = rank.put(varied(DType::f32, 2, 8, 1));
                                    sum(rank, in, "a");
                                    if (rank.index == dies) throw InputError("now");
                                    sum(rank, in, "b");
                                  }),
              fmt::format("rank {}: now", dies));
  }
}

// Before the peers are there, while the work is enqueued, and after it.
TEST_P(Events, ADeviceThatFailsAtAnyCallEndsTheRun) {
  const auto body = [](Rank& rank) {
    const Tensor in = rank.put(varied(DType::bf16, 3, 9, 1));
    sum(rank, in, "a");
    sum(rank, in, "b");
    rank.stream().synchronize();
  };
  for (int at_call = 0;; ++at_call) {
    auto failing = std::make_unique<FailingDevice>(device(static_cast<std::uint64_t>(at_call)),
                                                   at_call);
    const FailingDevice& counter = *failing;
    Ranks ranks(line(3), std::move(failing));
    const std::string message = stopped<std::runtime_error>(ranks, body);
    if (counter.calls() <= at_call) {
      EXPECT_GE(at_call, 3 * 2 * 7);
      EXPECT_EQ(message, "no error");
      break;
    }
    EXPECT_THAT(message, HasSubstr("the device fell over")) << "call " << at_call;
    const Turn turn(ranks.device());
    ranks.device().make_stream()->synchronize();  // nor has anybody left while peers still read its tensors
  }
}

/// Input buffers that are filled again and freed as soon as the collective has returned.
void reused_buffers(Rank& rank, int calls) {
  const auto tp = rank.over();
  const Tensor in = rank.empty(DType::f32, 4, 6), out = rank.empty(DType::f32, 4, 6);
  for (int i = 0; i < calls; ++i) {
    in.device->upload(rank.stream(), varied(DType::f32, 4, 6, static_cast<std::uint64_t>(i)), in);
    tp->all_reduce(rank.stream(), in, {}, out, at("a", Phase::decode, i));
  }
  rank.get(out);
}

TEST_P(Events, EveryMissingWaitIsCaught) {
  constexpr int kCalls = 3;
  auto complete = std::make_unique<ForgetfulDevice>(device(), -1);
  const ForgetfulDevice& counter = *complete;
  Ranks right(line(4), std::move(complete));
  right.run([](Rank& rank) { reused_buffers(rank, kCalls); });
  const int waits = counter.waits();
  EXPECT_EQ(waits, kCalls * 4 * (3 + 3));
  int caught = 0, planted = 0;
  for (int i = 0; i < 100; ++i) {
    // The waits of the last call protect buffers that nobody touches any more but to free them.
    const int dropped = i % (waits * (kCalls - 1) / kCalls);
    auto faulty = std::make_unique<ForgetfulDevice>(device(static_cast<std::uint64_t>(i)), dropped);
    Ranks ranks(line(4), std::move(faulty));
    ++planted;
    try {
      ranks.run([](Rank& rank) { reused_buffers(rank, kCalls); });
      const Turn turn(ranks.device());
      ranks.device().make_stream()->synchronize();
    } catch (const DeviceError& error) {
      caught += std::string(error.what()).find("no event") != std::string::npos;
    }
  }
  EXPECT_EQ(caught, planted);
}

INSTANTIATE_TEST_SUITE_P(Devices, Events,
                         ::testing::Values(Kind{"late", make_late_device}, Kind{"emu", make_emu}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace shardcheck::testing
