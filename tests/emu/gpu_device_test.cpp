// SPDX-License-Identifier: Apache-2.0
// The host code of the GPU device, as far as only emu shows it: memory that comes back, and who waits for whom.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/emu/emu_device.hpp"
#include "kernels/emu/runtime.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

std::size_t used_bytes() {
  const emu::Runtime& runtime = emu::Runtime::instance();
  return runtime.bytes_total() - runtime.bytes_free();
}

TEST(GpuDevice, AllMemoryComesBackWithItsTensors) {
  DeviceRig rig;
  const std::size_t before = used_bytes();
  {
    const Tensor x = rig.put(DType::bf16, random_matrix(DType::bf16, 3, 37, 1), Layout::inset);
    const Tensor weight = rig.put(DType::bf16, random_matrix(DType::bf16, 5, 37, 2));
    const Tensor bias = rig.put(DType::bf16, random_matrix(DType::bf16, 1, 5, 3));
    for (const DType out_dtype : kStorageDTypes) {
      const Tensor out = rig.make(out_dtype, 3, 5, Layout::transposed);
      rig.device().linear(rig.stream(), x, weight, &bias, out);
      EXPECT_EQ(rig.get(out).elements(), 15);
    }
    EXPECT_GT(used_bytes(), before);
  }
  rig.stream().synchronize();
  EXPECT_EQ(used_bytes(), before);
}

TEST(GpuDevice, ATensorMayOutliveItsStream) {
  const auto device = make_emu_device();
  Tensor tensor;
  {
    const auto stream = device->make_stream();
    tensor = device->allocate(*stream, DType::f32, 2, 3);
    device->poison(*stream, tensor);
    stream->synchronize();
  }
  const auto other = device->make_stream();
  EXPECT_TRUE(std::isnan(device->to_host(*other, tensor).at(5)));
}

TEST(GpuDevice, StreamsAreOrderedByEventsAlone) {
  DeviceRig rig;
  const Matrix x = random_matrix(DType::f32, 4, 4, 1);
  const Tensor tensor = rig.put(DType::f32, x);
  const auto other = rig.device().make_stream();
  EXPECT_THROW(rig.device().to_host(*other, tensor), DeviceError);
  const auto third = rig.device().make_stream();
  rig.device().wait(*third, *rig.device().record(rig.stream()));  // the event is gone before anything has run
  EXPECT_TRUE(rig.device().to_host(*third, tensor).bitwise_equal(exactly(DType::f32, x)));
}

}  // namespace
}  // namespace shardcheck
