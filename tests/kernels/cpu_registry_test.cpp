// SPDX-License-Identifier: Apache-2.0
// The kinds of device by name, and the one that has shapes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/device.hpp"
#include "kernels/meta/meta_device.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

TEST(MetaDevice, HasShapesButNoValues) {
  const auto device = make_meta_device();
  const auto stream = device->make_stream();
  EXPECT_FALSE(device->has_values());
  const Tensor huge = device->allocate(*stream, DType::f32, std::int64_t{1} << 30,
                                       std::int64_t{1} << 20);  // 4 PiB
  EXPECT_EQ(huge.storage, nullptr);
  const Tensor x = device->allocate(*stream, DType::f32, 2, huge.cols),
               out = device->allocate(*stream, DType::f32, 2, huge.rows);
  device->linear(*stream, x, huge, nullptr, out);
  EXPECT_THROW(device->to_host(*stream, out), std::logic_error);
  const HostTensor host(DType::bf16, {3, 5});
  const Tensor adopted = device->adopt(*stream, host);
  EXPECT_EQ(adopted.rows, 3);
  EXPECT_EQ(adopted.cols, 5);
  EXPECT_EQ(adopted.dtype, DType::bf16);
}

TEST(DeviceRegistry, NamesItsKinds) {
  DeviceRegistry devices = builtin_devices();
  EXPECT_EQ(devices.kinds(), (std::vector<std::string>{"cpu", "cuda", "emu", "meta"}));
  EXPECT_EQ(devices.make("cpu")->kind(), "cpu");
  for (const std::string& kind : devices.kinds()) EXPECT_NE(devices.describe(kind), "") << kind;
  try {
    devices.make("cuba");
    FAIL() << "an unknown kind was made";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu, cuda, emu, meta"));
  }
}

TEST(DeviceRegistry, TakesANewKindAndSaysHowManyItMakes) {
  DeviceRegistry devices = builtin_devices();
  devices.add("mine", {.make =
                           [](int ranks) {
                             std::vector<std::unique_ptr<Device>> own;
                             for (int rank = 0; rank < ranks; ++rank)
                               own.push_back(make_cpu_device());
                             return own;
                           },
                       .describe = [] { return std::string("one for each rank"); }});
  EXPECT_EQ(devices.make("mine")->kind(), "cpu");
  EXPECT_EQ(devices.make_for("mine", 3).size(), 3u);
  EXPECT_EQ(devices.make_for("cpu", 3).size(), 1u);  // all ranks share it
  EXPECT_EQ(devices.describe("mine"), "one for each rank");
}

}  // namespace
}  // namespace shardcheck
