// SPDX-License-Identifier: Apache-2.0
// When tasks run, in which order, and what becomes of those around an error.
#include <gmock/gmock.h>

#include <cmath>
#include <thread>

#include "tests/emu/runtime_rig.hpp"

namespace shardcheck::emu {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Streams, RunNothingBeforeTheHostWaits) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 3, {1, 2, 3});
  const PinnedFloats host(3);
  for (std::size_t i = 0; i < 3; ++i) host[i] = 7;
  launch_increment("increment", stream, x.read(), x.view());
  ASSERT_EQ(cudaMemcpyAsync(host.data(), x.data(), x.bytes(), cudaMemcpyDeviceToHost, stream),
            cudaSuccess);
  EXPECT_EQ(host[0], 7);  // what a missing synchronisation shows
  stream.synchronize();
  EXPECT_THAT(std::vector(host.data(), host.data() + 3), ElementsAre(2, 3, 4));
}

TEST(Streams, APinnedBufferNobodyWroteIsPoison) {
  const PinnedFloats host(2);
  EXPECT_TRUE(std::isnan(host[0]) && std::isnan(host[1]));
}

TEST(Streams, AnEventIsReachedWithoutWhatComesAfterIt) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 1, {1});
  const PinnedFloats first(1), second(1);
  const TestEvent event;
  ASSERT_EQ(cudaMemcpyAsync(first.data(), x.data(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(second.data(), x.data(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(first[0], 1);
  EXPECT_TRUE(std::isnan(second[0]));
}

TEST(Streams, WaitingRunsWhatOtherStreamsMustDoFirst) {
  for (const std::uint64_t seed : kSeeds) {
    const Seed with(seed);
    const TestStream a, b, c;
    const DeviceMatrix<float> x(a, 1, 2, {1, 2});
    launch_increment("on a", a, x.read(), x.view());
    order(a, b);
    launch_increment("on b", b, x.read(), x.view());
    order(b, c);
    launch_increment("on c", c, x.read(), x.view());
    EXPECT_THAT(x.values(c), ElementsAre(4, 5)) << "seed " << seed;
    order(c, a);  // for the end of x
  }
}

TEST(Streams, AnEventIsWaitedForAsItWasRecordedThen) {
  const TestStream a, b;
  const DeviceMatrix<float> x(a, 1, 1, {1});
  const TestEvent event;
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);  // never recorded: no wait
  ASSERT_EQ(cudaEventSynchronize(event), cudaSuccess);
  ASSERT_EQ(cudaEventQuery(event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, b), cudaSuccess);  // changes nothing for the wait above
  launch_increment("increment", b, x.read(), x.view());
  EXPECT_THAT(x.values(b), ElementsAre(2));
}

TEST(Streams, PollingEnds) {
  const TestStream a, b;
  const DeviceMatrix<float> x(a, 1, 1, {1});
  launch_increment("increment", a, x.read(), x.view());
  order(a, b);
  launch_increment("increment", b, x.read(), x.view());
  const TestEvent event;
  ASSERT_EQ(cudaEventRecord(event, b), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  int questions = 0;
  while (cudaEventQuery(event) == cudaErrorNotReady) ASSERT_LT(++questions, 100);
  EXPECT_THAT(x.values(a), ElementsAre(3));
}

TEST(Streams, ASeedMakesOtherStreamsRunToo) {
  int ran_early = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Seed with(seed);
    const TestStream a, b;
    const DeviceMatrix<float> x(a, 1, 1, {1}), y(b, 1, 1, {2});
    const PinnedFloats other(1);
    ASSERT_EQ(cudaMemcpyAsync(other.data(), y.data(), 4, cudaMemcpyDeviceToHost, b), cudaSuccess);
    for (int i = 0; i < 8; ++i) launch_increment("increment", a, x.read(), x.view());
    a.synchronize();
    ran_early += std::isnan(other[0]) ? 0 : 1;
  }
  EXPECT_GT(ran_early, 0);
  EXPECT_LT(ran_early, 20);
}

TEST(Streams, AStreamThatEndsRunsWhatItHolds) {
  const PinnedFloats host(1);
  {
    const TestStream stream;
    const DeviceMatrix<float> x(stream, 1, 1, {5});
    ASSERT_EQ(cudaMemcpyAsync(host.data(), x.data(), 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }
  EXPECT_EQ(host[0], 5);
}

TEST(Streams, HostThreadsMayEnqueueAtOnce) {
  std::vector<std::thread> threads;
  std::vector<float> results(4);
  for (std::size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&results, i] {
      const TestStream stream;
      const DeviceMatrix<float> x(stream, 1, 1, {static_cast<float>(i)});
      for (int step = 0; step < 50; ++step)
        launch_increment("increment", stream, x.read(), x.view());
      results[i] = x.values(stream)[0];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(results, ElementsAre(50, 51, 52, 53));
}

TEST(Errors, SurfaceWhereTheKernelRuns) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 4);
  gpu::launch(overrun, {"overrun", stream, dim3(1), dim3(1)}, x.view());
  EXPECT_THAT(device_error([&] { stream.synchronize(); }), HasSubstr("overrun"));
  stream.synchronize();  // once
  EXPECT_EQ(x.values(stream).size(), 4u);
}

TEST(Errors, DropWorkThatWaitedAndSaySoOncePerStream) {
  for (const std::uint64_t seed : kSeeds) {
    const Seed with(seed);
    const TestStream a, b, idle;
    const DeviceMatrix<float> x(a, 1, 4, {1, 2, 3, 4}), y(b, 1, 1, {1});
    gpu::launch(overrun, {"overrun", a, dim3(1), dim3(1)}, x.view());
    const TestEvent after;
    ASSERT_EQ(cudaEventRecord(after, a), cudaSuccess);
    const PinnedFloats host(1);
    ASSERT_EQ(cudaStreamWaitEvent(b, after, 0), cudaSuccess);
    ASSERT_EQ(cudaMemcpyAsync(host.data(), y.data(), 4, cudaMemcpyDeviceToHost, b), cudaSuccess);
    EXPECT_THAT(device_error([&] { a.synchronize(); }), HasSubstr("overrun"));
    EXPECT_TRUE(std::isnan(host[0]));
    idle.synchronize();
    EXPECT_THAT(device_error([&] { static_cast<void>(cudaEventSynchronize(after)); }),
                HasSubstr("overrun"));
    EXPECT_THAT(device_error([&] { b.synchronize(); }),
                HasSubstr("was dropped after an error on the device"));
    b.synchronize();
    // A stream that waits for dropped work fails as well.
    ASSERT_EQ(cudaStreamWaitEvent(idle, after, 0), cudaSuccess);
    EXPECT_THAT(device_error([&] { idle.synchronize(); }), HasSubstr("overrun"));
    // All is well afterwards.
    const DeviceMatrix<float> z(idle, 1, 1, {1});
    launch_increment("increment", idle, z.read(), z.view());
    EXPECT_THAT(z.values(idle), ElementsAre(2));
  }
}

TEST(Errors, AnEventRepeatsWhatItsStreamWillReport) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 1, {1});
  gpu::launch(overrun, {"overrun", stream, dim3(1), dim3(1)}, x.view());
  const TestEvent event;
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(device_error([&] { static_cast<void>(cudaEventSynchronize(event)); }),
                HasSubstr("overrun"));
  }
  EXPECT_THAT(device_error([&] { stream.synchronize(); }), HasSubstr("overrun"));
  stream.synchronize();
}

TEST(Errors, DestructorsAreQuiet) {
  const std::size_t before = Runtime::instance().bytes_free();
  for (const std::uint64_t seed : kSeeds) {
    const Seed with(seed);
    const TestStream a, b;
    const DeviceMatrix<float> x(a, 1, 4);
    gpu::launch(overrun, {"overrun", a, dim3(1), dim3(1)}, x.view());
    order(a, b);
    launch_increment("increment", b, x.read(), x.view());
    order(b, a);
  }
  EXPECT_EQ(Runtime::instance().bytes_free(), before);
}

TEST(Errors, HandlesThatAreGoneAreRefused) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  void* data = nullptr;
  EXPECT_EQ(cudaMallocAsync(&data, 4, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidResourceHandle), "cudaErrorInvalidResourceHandle");
}

}  // namespace
}  // namespace shardcheck::emu
