// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/exponential.hpp"
#include "model/dtype.hpp"

namespace shardcheck {
namespace {

TEST(Exponential, StaysWithinTwoUlp) {
  // All bit patterns in steps that meet every exponent and many fractions, where e^x is neither 0 nor infinite.
  double worst = 0;
  for (std::uint32_t bits = 0; bits < 0x42d20000u; bits += 4099) {
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      const double want = std::exp(static_cast<double>(x));
      if (want > static_cast<double>(std::numeric_limits<float>::max())) continue;
      const double got = cpu::exponential(cpu::broadcast(x))[3];
      const double ulp = 2 * unit_roundoff(DType::f32) * want + 2 * half_min_subnormal(DType::f32);
      worst = std::max(worst, std::abs(got - want) / ulp);
      ASSERT_LE(std::abs(got - want), 2 * ulp) << x;
    }
  }
  EXPECT_GT(worst, 0.5);  // the sweep isn't empty: a correctly rounded result reaches half an ulp
  EXPECT_EQ(cpu::exponential(cpu::broadcast(-200.0f))[0], 0.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(-std::numeric_limits<float>::infinity()))[0], 0.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(0.0f))[0], 1.0f);
  EXPECT_EQ(cpu::exponential(cpu::broadcast(200.0f))[0], std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(cpu::exponential(cpu::broadcast(std::numeric_limits<float>::quiet_NaN()))[0]));
}

}  // namespace
}  // namespace shardcheck
