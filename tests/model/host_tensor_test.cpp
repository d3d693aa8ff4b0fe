// SPDX-License-Identifier: Apache-2.0
#include "model/host_tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "model/error.hpp"

namespace shardcheck {
namespace {

TEST(HostTensor, IsZeroFilledAndAligned) {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::u64}) {
    const HostTensor tensor(dtype, {3, 5});
    EXPECT_EQ(std::bit_cast<std::uintptr_t>(tensor.data()) % 64, 0u);
    EXPECT_EQ(tensor.bytes(), 15 * element_size(dtype));
    for (const double x : tensor.to_f64()) EXPECT_EQ(x, 0.0);
  }
}

TEST(HostTensor, RoundsOnceAndWidensExactly) {
  const std::vector<double> values = {1.0 / 3.0, -2.5e-5, 65519.0, 0.0, 1.0 + 0x1p-8 + 0x1p-40,
                                      -7.0};
  const HostTensor exact = round_to(DType::f64, {2, 3}, values);
  EXPECT_EQ(exact.to_f64(), values);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const HostTensor rounded = round_to(dtype, {2, 3}, values);
    EXPECT_EQ(rounded.shape(), (std::vector<std::int64_t>{2, 3}));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = rounded.at(static_cast<std::int64_t>(i));
      EXPECT_LE(std::fabs(x - values[i]),
                std::max(unit_roundoff(dtype) * std::fabs(values[i]), half_min_subnormal(dtype)));
      EXPECT_EQ(x, rounded.to_f64()[i]);
    }
    EXPECT_TRUE(round_to(dtype, {2, 3}, rounded.to_f64()).bitwise_equal(rounded));
  }
}

TEST(HostTensor, BitwiseEqualSeesShapeDtypeAndEveryBit) {
  const std::vector<double> values = {0.0, 1.0, 2.0, 3.0};
  const HostTensor a = round_to(DType::f32, {2, 2}, values);
  EXPECT_TRUE(a.bitwise_equal(round_to(DType::f32, {2, 2}, values)));
  EXPECT_FALSE(a.bitwise_equal(round_to(DType::f32, {4}, values)));
  EXPECT_FALSE(a.bitwise_equal(round_to(DType::f64, {2, 2}, values)));
  HostTensor minus_zero = round_to(DType::f32, {2, 2}, values);
  minus_zero.as_mutable<float>()[0] = -0.0f;
  EXPECT_FALSE(a.bitwise_equal(minus_zero));
  HostTensor nan = round_to(DType::f32, {2, 2}, values);
  nan.as_mutable<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(nan.bitwise_equal(nan));
  EXPECT_TRUE(std::isnan(nan.at(3)));
}

TEST(HostTensor, ExtentsMayBeZero) {
  const HostTensor empty(DType::bf16, {0, 7});
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(empty.cols(), 7);
  EXPECT_TRUE(empty.to_f64().empty());
  EXPECT_TRUE(empty.bitwise_equal(HostTensor(DType::bf16, {0, 7})));
  EXPECT_FALSE(empty.bitwise_equal(HostTensor(DType::bf16, {7, 0})));
  const HostTensor huge_but_empty(DType::f64, {std::numeric_limits<std::int64_t>::max(), 9, 0});
  EXPECT_EQ(huge_but_empty.bytes(), 0u);
  EXPECT_EQ(HostTensor().elements(), 0);
}

TEST(HostTensor, RefusesImpossibleShapesAndForeignWrites) {
  EXPECT_THROW(HostTensor(DType::f32, {2, -1}), ShapeError);
  EXPECT_THROW(HostTensor(DType::f32, {std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
  EXPECT_THROW(round_to(DType::f32, {3}, std::vector<double>{1.0}), ShapeError);
  HostTensor owner(DType::f32, {2});
  owner.as_mutable<float>()[1] = 4.0f;
  {
    const HostTensor copy = owner;
    EXPECT_THROW(owner.mutable_data(), std::logic_error);
    EXPECT_EQ(copy.at(1), 4.0);
  }
  EXPECT_NO_THROW(owner.mutable_data());
  EXPECT_THROW(owner.at(2), ShapeError);
  EXPECT_EQ(to_string(std::vector<std::int64_t>{5, 576}), "[5, 576]");
}

TEST(HostTensor, IntegersWiden) {
  HostTensor ids(DType::i64, {1, 3});
  ids.as_mutable<std::int64_t>()[0] = -5;
  ids.as_mutable<std::int64_t>()[2] = 49151;
  EXPECT_EQ(ids.to_f64(), (std::vector<double>{-5.0, 0.0, 49151.0}));
}

}  // namespace
}  // namespace shardcheck
