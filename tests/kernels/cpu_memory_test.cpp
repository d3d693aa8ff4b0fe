// SPDX-License-Identifier: Apache-2.0
// What is true of the CPU device alone: it reads host memory in place.
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {
namespace {

TEST(CpuMemory, AdoptedMemoryIsReadInPlaceAndKeptAlive) {
  DeviceRig rig;
  const Matrix x = random_matrix(DType::bf16, 3, 5, 1);
  Tensor tensor;
  {
    const HostTensor host = exactly(DType::bf16, x);
    tensor = rig.device().adopt(rig.stream(), host);
  }
  EXPECT_TRUE(rig.device().shares_host_memory());
  EXPECT_TRUE(rig.get(tensor).bitwise_equal(exactly(DType::bf16, x)));
  EXPECT_THROW(rig.device().poison(rig.stream(), tensor), ShapeError);
  EXPECT_THROW(rig.device().upload(rig.stream(), exactly(DType::bf16, x), tensor), ShapeError);
}

TEST(CpuMemory, ItsArithmeticIsThatOfTheAccumulateDType) {
  DeviceRig rig;
  for (const DType dtype : kStorageDTypes) {
    const Arithmetic a = rig.arithmetic(Primitive::linear, dtype);
    EXPECT_EQ(a.accumulate, dtype == DType::f64 ? DType::f64 : DType::f32);
    EXPECT_EQ(std::exp2(-a.fraction_bits), unit_roundoff(a.accumulate));
    EXPECT_FALSE(a.truncating);
    EXPECT_EQ(a.block_k, 0);
    EXPECT_FALSE(a.rounds_softmax_weights);
  }
}

}  // namespace
}  // namespace shardcheck
