// SPDX-License-Identifier: Apache-2.0
// Device memory that the host can't touch, and what copies do with the three kinds of memory.
#include <gmock/gmock.h>

#include <bit>
#include <cstdlib>

#include "tests/emu/runtime_rig.hpp"

namespace shardcheck::emu {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MemoryDeathTest : public ::testing::Test {};

float touch(const float* pointer) { return *static_cast<const volatile float*>(pointer); }

TEST_F(MemoryDeathTest, TheHostCannotReadOrWriteDeviceMemory) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 4, {1, 2, 3, 4});
  EXPECT_DEATH(touch(x.data()), "");
  stream.synchronize();
  EXPECT_DEATH(touch(x.data()), "");
  EXPECT_DEATH(*static_cast<volatile float*>(x.data()) = 1, "");
}

TEST_F(MemoryDeathTest, NotEvenAfterAKernelsError) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 4);
  gpu::launch(overrun, {"overrun", stream, dim3(1), dim3(1)}, x.view());
  EXPECT_THROW(stream.synchronize(), DeviceError);
  EXPECT_DEATH(touch(x.data()), "");
}

TEST_F(MemoryDeathTest, AForkedProcessGoesOnByItself) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 1, {1});
  ASSERT_EQ(cudaMemsetAsync(x.data(), 0, 4, stream), cudaSuccess);  // runs in both
  EXPECT_EXIT(std::_Exit(x.values(stream)[0] == 0 ? 7 : 1), ::testing::ExitedWithCode(7), "");
  EXPECT_THAT(x.values(stream), ElementsAre(0));
}

TEST(Memory, FreshAndFreedBytesArePoison) {
  const TestStream stream;
  for (int round = 0; round < 3; ++round) {
    const DeviceMatrix<float> x(stream, 3, 100);
    for (const float value : x.values(stream))
      EXPECT_EQ(std::bit_cast<std::uint32_t>(value), 0xffffffffu);
    ASSERT_EQ(cudaMemsetAsync(x.data(), 0, x.bytes(), stream), cudaSuccess);
    EXPECT_THAT(x.values(stream), Each(0));
  }
}

TEST(Memory, IsAlignedAndUsedAgain) {
  const TestStream stream;
  const std::size_t before = Runtime::instance().bytes_free();
  float* first = nullptr;
  for (int step = 0; step < 1000; ++step) {
    const DeviceMatrix<float> x(stream, 1, 1 + step % 7 * 100), y(stream, 1, 3);
    for (const float* const data : {x.data(), y.data()})
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0u);
    if (step == 0) first = x.data();
    EXPECT_LT(x.data() - first, 1 << 20);
    if (step % 10 == 0) stream.synchronize();
  }
  stream.synchronize();
  EXPECT_EQ(Runtime::instance().bytes_free(), before);
}

TEST(Memory, PageableBytesLeaveAtTheCallAndArriveAtTheCall) {
  const TestStream stream;
  std::vector<float> host{1, 2};
  const DeviceMatrix<float> x(stream, 1, 2, host);
  host = {8, 9};
  EXPECT_THAT(x.values(stream), ElementsAre(1, 2));
}

TEST(Memory, PinnedBytesLeaveInTheStreamsTime) {
  const TestStream stream;
  const PinnedFloats host(2);
  host[0] = host[1] = 1;
  const DeviceMatrix<float> x(stream, 1, 2);
  ASSERT_EQ(cudaMemcpyAsync(x.data(), host.data(), 8, cudaMemcpyHostToDevice, stream), cudaSuccess);
  host[1] = 5;  // too early
  EXPECT_THAT(x.values(stream), ElementsAre(1, 5));
}

TEST(Memory, FreeingPinnedMemoryWaitsForItsTasks) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 2);
  {
    const PinnedFloats host(2);
    host[0] = 3;
    host[1] = 4;
    ASSERT_EQ(cudaMemcpyAsync(x.data(), host.data(), 8, cudaMemcpyHostToDevice, stream), cudaSuccess);
  }
  EXPECT_THAT(x.values(stream), ElementsAre(3, 4));
}

TEST(Memory, RowsAreCopiedWithPitches) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 3, 4, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), y(stream, 3, 2);
  ASSERT_EQ(cudaMemcpy2DAsync(y.data(), 8, x.data() + 1, 16, 8, 3, cudaMemcpyDeviceToDevice, stream),
            cudaSuccess);
  EXPECT_THAT(y.values(stream), ElementsAre(1, 2, 5, 6, 9, 10));
  std::vector<float> host(9, 0.0f);
  ASSERT_EQ(cudaMemcpy2DAsync(host.data(), 12, y.data(), 8, 8, 3, cudaMemcpyDefault, stream),
            cudaSuccess);
  EXPECT_THAT(host, ElementsAre(1, 2, 0, 5, 6, 0, 9, 10, 0));
  EXPECT_EQ(cudaMemcpy2DAsync(y.data(), 4, x.data(), 16, 8, 3, cudaMemcpyDeviceToDevice, stream),
            cudaErrorInvalidPitchValue);
}

TEST(Memory, WhatCudaRefusesIsRefused) {
  const TestStream stream;
  const DeviceMatrix<float> x(stream, 1, 4);
  std::vector<float> host(4);
  void* none = nullptr;
  EXPECT_EQ(cudaMallocAsync(&none, 0, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMallocAsync(&none, std::size_t{1} << 50, stream), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), host.data(), 16, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), host.data(), 16, cudaMemcpyDeviceToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), nullptr, 16, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(x.data(), nullptr, 0, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 4, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(host.data(), stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(x.data() + 1, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(x.data()), cudaErrorInvalidValue);
  EXPECT_THAT(device_error([&] { static_cast<void>(cudaMemsetAsync(x.data(), 0, 17, stream)); }),
              HasSubstr("writes bytes 0 to 16 of an allocation of 16 bytes"));
}

}  // namespace
}  // namespace shardcheck::emu
