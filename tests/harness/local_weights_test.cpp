// SPDX-License-Identifier: Apache-2.0
// The judge rounds weights itself; the model's conversion is an independent twin.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "harness/local/weights.hpp"
#include "model/float_bits.hpp"
#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

double once(double value, DType dtype) {
  round_in_place({&value, 1}, dtype);
  return value;
}

bool same(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST(LocalWeights, RoundLikeTheModelsConversionEverywhere) {
  std::mt19937_64 bits(3);
  for (int i = 0; i < 400000; ++i) {
    // Exponents around those of the formats, their subnormals and their overflow; every second value is a tie.
    const int exponent = static_cast<int>(bits() % 320) - 170;
    const double significand = i % 2 == 0 ? static_cast<double>(bits() % 4096 + 4096)
                                          : static_cast<double>(bits() >> 11);
    const double value = std::ldexp(i % 3 == 0 ? -significand : significand, exponent - 12);
    EXPECT_TRUE(same(once(value, DType::bf16), static_cast<double>(bf16_to_f32(f64_to_bf16(value)))))
        << value;
    EXPECT_TRUE(same(once(value, DType::f16), static_cast<double>(f16_to_f32(f64_to_f16(value)))))
        << value;
    EXPECT_TRUE(same(once(value, DType::f32), static_cast<double>(static_cast<float>(value)))) << value;
    EXPECT_TRUE(same(once(value, DType::f64), value));
  }
}

TEST(LocalWeights, SpecialValuesStay) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : kDTypes) {
    EXPECT_TRUE(same(once(0.0, dtype), 0.0));
    EXPECT_TRUE(same(once(-0.0, dtype), -0.0));
    EXPECT_TRUE(same(once(inf, dtype), inf));
    EXPECT_TRUE(std::isnan(once(std::numeric_limits<double>::quiet_NaN(), dtype)));
  }
  EXPECT_EQ(once(65519.0, DType::f16), 65504.0);
  EXPECT_EQ(once(65520.0, DType::f16), inf);
  // Twice rounded, through f32, this would be 1 + 2^-7.
  EXPECT_EQ(once(1.0 + 0x1p-8 - 0x1p-40, DType::bf16), 1.0);
}

TEST(LocalWeights, RowsAreThoseOfTheModel) {
  const Model model = small_llama();
  const RoundedWeights weights(model, DType::bf16);
  const Table whole = stored(model, DType::bf16, "layers.0.mlp.down_proj.weight");
  std::vector<double> rows(3 * 160);
  weights.read_rows("layers.0.mlp.down_proj.weight", 5, 8, rows);
  for (std::int64_t i = 0; i < 3 * 160; ++i)
    EXPECT_EQ(rows[static_cast<std::size_t>(i)], whole.data()[5 * 160 + i]);
  EXPECT_EQ(weights.vector("layers.0.self_attn.k_proj.bias").size(), 48u);
}

}  // namespace
}  // namespace shardcheck::testing
