// SPDX-License-Identifier: Apache-2.0
// Two streams that touch the same bytes: found every time if nothing orders them, never if something does.
#include <gmock/gmock.h>

#include <functional>
#include <thread>

#include "tests/emu/runtime_rig.hpp"

namespace shardcheck::emu {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Pair {
  TestStream a, b;
  DeviceMatrix<float> x{a, 4, 8}, y{a, 4, 8};
  Pair() { order(a, b); }
};

/// A conflict that `first` on stream a and `second` on stream b have if nothing lies between them.
struct Conflict {
  const char* name;
  std::function<void(Pair&)> first, second;
};

void on_a(Pair& pair, const char* name, const DeviceMatrix<float>& in, const DeviceMatrix<float>& out) {
  launch_increment(name, pair.a, in.read(), out.view());
}
void on_b(Pair& pair, const char* name, const DeviceMatrix<float>& in, const DeviceMatrix<float>& out) {
  launch_increment(name, pair.b, in.read(), out.view());
}

std::vector<Conflict> conflicts() {
  static std::vector<float> host(32);
  return {
      {"read after write", [](Pair& p) { on_a(p, "writer", p.y, p.x); },
       [](Pair& p) {
         const DeviceMatrix<float> own(p.b, 4, 8);
         on_b(p, "reader", p.x, own);
       }},
      {"write after read", [](Pair& p) { on_a(p, "reader", p.x, p.y); },
       [](Pair& p) {
         const DeviceMatrix<float> own(p.b, 4, 8);
         on_b(p, "writer", own, p.x);
       }},
      {"write after write",
       [](Pair& p) { ASSERT_EQ(cudaMemsetAsync(p.x.data(), 0, 128, p.a), cudaSuccess); },
       [](Pair& p) { ASSERT_EQ(cudaMemsetAsync(p.x.data(), 1, 128, p.b), cudaSuccess); }},
      {"upload", [](Pair& p) { on_a(p, "reader", p.x, p.y); },
       [](Pair& p) {
         ASSERT_EQ(cudaMemcpyAsync(p.x.data(), host.data(), 128, cudaMemcpyHostToDevice, p.b),
                   cudaSuccess);
       }},
      {"download", [](Pair& p) { on_a(p, "writer", p.y, p.x); },
       [](Pair& p) {
         ASSERT_EQ(cudaMemcpyAsync(host.data(), p.x.data(), 128, cudaMemcpyDeviceToHost, p.b),
                   cudaSuccess);
       }},
      {"one element", [](Pair& p) { on_a(p, "writer", p.y, p.x); },
       [](Pair& p) { ASSERT_EQ(cudaMemsetAsync(p.x.data() + 31, 0, 4, p.b), cudaSuccess); }},
  };
}

TEST(Races, AMissingEventIsFoundEveryTime) {
  int found = 0;
  for (int repetition = 0; repetition < 17; ++repetition) {
    for (const Conflict& conflict : conflicts()) {
      const Seed with(static_cast<std::uint64_t>(repetition));
      Pair pair;
      conflict.first(pair);
      const std::string message = device_error([&] { conflict.second(pair); });
      EXPECT_THAT(message, AllOf(HasSubstr("stream"), HasSubstr("no event lies between them")))
          << conflict.name;
      found += message.empty() ? 0 : 1;
      static_cast<void>(device_error([&] { pair.b.synchronize(); }));
      order(pair.b, pair.a);
    }
  }
  EXPECT_EQ(found, 17 * 6);
}

TEST(Races, WithAnEventThereIsNone) {
  for (const std::uint64_t seed : kSeeds) {
    for (const Conflict& conflict : conflicts()) {
      const Seed with(seed);
      Pair pair;
      conflict.first(pair);
      order(pair.a, pair.b);
      EXPECT_EQ(device_error([&] { conflict.second(pair); }), "") << conflict.name;
      order(pair.b, pair.a);
    }
  }
}

TEST(Races, TheHostsWaitingOrdersToo) {
  for (const Conflict& conflict : conflicts()) {
    Pair pair;
    conflict.first(pair);
    pair.a.synchronize();
    EXPECT_EQ(device_error([&] { conflict.second(pair); }), "") << conflict.name;
    pair.b.synchronize();
  }
  for (const Conflict& conflict : conflicts()) {
    Pair pair;
    conflict.first(pair);
    const TestEvent event;
    ASSERT_EQ(cudaEventRecord(event, pair.a), cudaSuccess);
    std::thread([&] { ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess); }).join();
    EXPECT_EQ(device_error([&] { conflict.second(pair); }), "") << conflict.name;
    order(pair.b, pair.a);
  }
}

TEST(Races, WaitingForAnEarlierPointIsNotEnough) {
  Pair pair;
  order(pair.a, pair.b);  // before the write
  launch_increment("writer", pair.a, pair.y.read(), pair.x.view());
  EXPECT_THAT(
      device_error([&] { launch_increment("reader", pair.b, pair.x.read(), pair.y.view()); }),
      AllOf(HasSubstr("reader: stream"), HasSubstr("reads what stream"),
            HasSubstr("writes in writer"), HasSubstr("bytes 0 to 127 of an allocation of 128")));
}

TEST(Races, OrderGoesThroughOtherStreams) {
  Pair pair;
  const TestStream c;
  launch_increment("writer", pair.a, pair.y.read(), pair.x.view());
  order(pair.a, c);
  order(c, pair.b);
  launch_increment("reader", pair.b, pair.x.read(), pair.y.view());
  order(pair.b, pair.a);
  pair.a.synchronize();
}

TEST(Races, ReadersDisturbNobodyUntilAWriteComes) {
  Pair pair;
  const DeviceMatrix<float> of_a(pair.a, 4, 8), of_b(pair.b, 4, 8);
  launch_increment("one", pair.a, pair.x.read(), of_a.view());
  launch_increment("two", pair.b, pair.x.read(), of_b.view());
  EXPECT_THAT(device_error([&] { launch_increment("three", pair.a, of_a.read(), pair.x.view()); }),
              HasSubstr("reads in two"));
  order(pair.b, pair.a);
  launch_increment("three", pair.a, of_a.read(), pair.x.view());
}

TEST(Races, AReadBehindAnotherStreamsReadIsRemembered) {
  // The second read covers the first, and comes after it; a writer that waits for the first alone is too early.
  Pair pair;
  const TestStream c;
  const DeviceMatrix<float> of_a(pair.a, 4, 8), of_b(pair.b, 4, 8);
  launch_increment("first", pair.a, pair.x.read(), of_a.view());
  order(pair.a, c);
  order(pair.a, pair.b);
  launch_increment("second", pair.b, pair.x.read(), of_b.view());
  EXPECT_THAT(device_error([&] { static_cast<void>(cudaMemsetAsync(pair.x.data(), 0, 128, c)); }),
              HasSubstr("reads in second"));
  order(pair.b, pair.a);
}

TEST(Races, DisjointPartsOfOneAllocationAreNone) {
  for (const std::uint64_t seed : kSeeds) {
    const Seed with(seed);
    Pair pair;
    const auto x = pair.x.view();
    launch_increment("left", pair.a, pair.y.read().col_range(0, 3), x.col_range(0, 3));
    launch_increment("right", pair.b, pair.y.read().col_range(3, 8), x.col_range(3, 8));
    EXPECT_THAT(device_error([&] {
                  launch_increment("middle", pair.b, pair.y.read().col_range(2, 4), x.col_range(2, 4));
                }),
                HasSubstr("writes in left"));
    order(pair.b, pair.a);
  }
  Pair pair;
  const auto x = pair.x.view();
  launch_increment("rows", pair.a, pair.y.read().row_range(0, 2), x.row_range(0, 2));
  launch_increment("other rows", pair.b, pair.y.read().row_range(2, 4), x.row_range(2, 4));
  order(pair.b, pair.a);
}

TEST(Races, NewMemoryBelongsToItsStream) {
  const TestStream a, b;
  const DeviceMatrix<float> x(a, 1, 4);
  EXPECT_THAT(device_error([&] { static_cast<void>(cudaMemsetAsync(x.data(), 0, 16, b)); }),
              HasSubstr("allocates in cudaMallocAsync"));
  order(a, b);
  ASSERT_EQ(cudaMemsetAsync(x.data(), 0, 16, b), cudaSuccess);
  order(b, a);
}

TEST(Races, FreeingWhatAnotherStreamReadsIsReportedToBoth) {
  for (const std::uint64_t seed : kSeeds) {
    const Seed with(seed);
    Pair pair;
    const DeviceMatrix<float> own(pair.b, 4, 8);
    launch_increment("reader", pair.b, pair.x.read(), own.view());
    pair.x.free();
    for (const TestStream* const stream : {&pair.a, &pair.b}) {
      EXPECT_THAT(device_error([&] { stream->synchronize(); }),
                  AllOf(HasSubstr("cudaFreeAsync"), HasSubstr("frees what stream"),
                        HasSubstr("reads in reader")));
      stream->synchronize();
    }
  }
  Pair pair;
  const DeviceMatrix<float> own(pair.b, 4, 8);
  launch_increment("reader", pair.b, pair.x.read(), own.view());
  order(pair.b, pair.a);
  pair.x.free();
  pair.a.synchronize();
  pair.b.synchronize();
}

TEST(Races, UsingWhatWasFreedIsAnErrorAtOnce) {
  Pair pair;
  const gpu::View<float> x = pair.x.view();
  pair.x.free();
  for (const TestStream* const stream : {&pair.a, &pair.b}) {
    EXPECT_THAT(device_error([&] { launch_increment("late", *stream, pair.y.read(), x); }),
                AllOf(HasSubstr("late"), HasSubstr("is not allocated")));
  }
}

TEST(Races, PinnedMemoryIsWatchedAsWell) {
  Pair pair;
  const PinnedFloats host(32);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), pair.x.data(), 128, cudaMemcpyDeviceToHost, pair.a),
            cudaSuccess);
  const auto copy_on_b = [&] {
    static_cast<void>(cudaMemcpyAsync(host.data(), pair.y.data(), 128, cudaMemcpyDeviceToHost, pair.b));
  };
  EXPECT_THAT(device_error(copy_on_b), HasSubstr("writes in cudaMemcpyAsync"));
  order(pair.a, pair.b);
  copy_on_b();
  order(pair.b, pair.a);
}

TEST(Races, HistoriesStayShort) {
  // A growing matrix whose rows one stream writes and another reads, with events alone: 2 x 20000 tasks.
  Pair pair;
  const DeviceMatrix<float> cache(pair.a, 200, 8), out(pair.b, 200, 8);
  for (int step = 0; step < 100; ++step) {
    for (std::int64_t row = 0; row < 200; ++row) {
      ASSERT_EQ(cudaMemsetAsync(cache.data() + row * 8, step, 32, pair.a), cudaSuccess);
    }
    order(pair.a, pair.b);
    launch_increment("reader", pair.b, cache.read(), out.view());
    order(pair.b, pair.a);
    if (step % 10 == 0) pair.b.synchronize();
  }
}

}  // namespace
}  // namespace shardcheck::emu
