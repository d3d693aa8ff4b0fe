// SPDX-License-Identifier: Apache-2.0
#include "model/float_bits.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "model/dtype.hpp"

namespace shardcheck {
namespace {

/// The slow twin: RNE to a format by its definition, in f64 (a division by a power of two is exact).
double round_naive(double value, const DTypeInfo& format) {
  if (!std::isfinite(value) || value == 0.0) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double quantum = std::ldexp(1.0, exponent - (format.precision - 1));
  const double rounded = std::nearbyint(value / quantum) * quantum;
  return std::fabs(rounded) > format.max_finite ? std::copysign(HUGE_VAL, value) : rounded;
}

/// The slow twin of widening: sign, exponent, fraction by their definition.
double widen_naive(std::uint16_t bits, const DTypeInfo& format) {
  const int fraction_bits = format.precision - 1;
  const int exponent_bits = 15 - fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, format.min_exponent - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits),
                           format.min_exponent + exponent - 1 - fraction_bits);
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

struct Format {
  DType dtype;
  float (*widen)(std::uint16_t);
  std::uint16_t (*from_f32)(float);
  std::uint16_t (*from_f64)(double);
};

class FloatBits : public testing::TestWithParam<Format> {
 protected:
  const Format& format() const { return GetParam(); }
  double widen(std::uint16_t bits) const { return double{format().widen(bits)}; }

  void expect_rounded_as_naive(double value) const {
    const double expected = round_naive(value, info(format().dtype));
    ASSERT_TRUE(same(widen(format().from_f64(value)), expected))
        << std::hexfloat << value << " gives " << widen(format().from_f64(value));
    const float narrow = static_cast<float>(value);
    ASSERT_TRUE(same(widen(format().from_f32(narrow)), round_naive(double{narrow}, info(format().dtype))))
        << std::hexfloat << narrow;
  }
};

TEST_P(FloatBits, EveryPatternWidensAsItsDefinitionSays) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    ASSERT_TRUE(same(widen(pattern), widen_naive(pattern, info(format().dtype)))) << bits;
  }
}

TEST_P(FloatBits, EveryPatternComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const double value = widen(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(widen(format().from_f32(static_cast<float>(value)))));
      EXPECT_TRUE(std::isnan(widen(format().from_f64(value))));
      continue;
    }
    ASSERT_EQ(format().from_f32(static_cast<float>(value)), pattern);
    ASSERT_EQ(format().from_f64(value), pattern);
  }
}

TEST_P(FloatBits, RoundsToNearestEvenAroundEveryMidpoint) {
  const std::uint16_t infinity = format().from_f32(HUGE_VALF);
  const double above_finite = std::ldexp(1.0, std::ilogb(info(format().dtype).max_finite) + 1);
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const double low = widen(bits);
    const auto next = static_cast<std::uint16_t>(bits + 1);
    const double high = next == infinity ? above_finite : widen(next);
    const double middle = low / 2 + high / 2;
    const float middle32 = static_cast<float>(middle);
    for (const double value :
         {low, middle, std::nextafter(middle, low), std::nextafter(middle, high),
          double{std::nextafter(middle32, 0.0f)}, double{std::nextafter(middle32, HUGE_VALF)},
          0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high}) {
      expect_rounded_as_naive(value);
      expect_rounded_as_naive(-value);
    }
  }
}

TEST_P(FloatBits, TakesOneRoundingFromF64) {
  // Just above a midpoint: f32 would drop the excess and then round to even, downwards.
  const double one_ulp = 2.0 * unit_roundoff(format().dtype);
  const double value = 1.0 + one_ulp / 2 + 0x1p-40;
  EXPECT_EQ(widen(format().from_f64(value)), 1.0 + one_ulp);
  EXPECT_EQ(widen(format().from_f32(static_cast<float>(value))), 1.0);
}

TEST_P(FloatBits, OverflowsAndKeepsNan) {
  for (const double value : {1e300, 1e39, double{std::numeric_limits<float>::max()}, HUGE_VAL,
                             1e-300, 0.0, -0.0, 4.9e-324}) {
    expect_rounded_as_naive(value);
    expect_rounded_as_naive(-value);
  }
  // A NaN whose payload lies only in bits that are cut off.
  const double thin_nan = std::bit_cast<double>(0x7ff0000000000001ULL);
  EXPECT_TRUE(std::isnan(widen(format().from_f64(thin_nan))));
  EXPECT_TRUE(std::isnan(widen(format().from_f32(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(widen(format().from_f64(std::nan("")))));
}

INSTANTIATE_TEST_SUITE_P(Formats, FloatBits,
                         testing::Values(Format{DType::bf16, bf16_to_f32, f32_to_bf16, f64_to_bf16},
                                         Format{DType::f16, f16_to_f32, f32_to_f16, f64_to_f16}),
                         [](const auto& suite) { return std::string(name(suite.param.dtype)); });

TEST(DTypeFacts, AreThoseOfIeee754) {
  EXPECT_EQ(unit_roundoff(DType::f64), 0x1p-53);
  EXPECT_EQ(unit_roundoff(DType::f32), 0x1p-24);
  EXPECT_EQ(unit_roundoff(DType::f16), 0x1p-11);
  EXPECT_EQ(unit_roundoff(DType::bf16), 0x1p-8);
  EXPECT_EQ(half_min_subnormal(DType::f32), double{std::numeric_limits<float>::denorm_min()} / 2);
  EXPECT_EQ(half_min_subnormal(DType::f16), 0x1p-25);
  EXPECT_EQ(half_min_subnormal(DType::bf16), 0x1p-134);
  EXPECT_GT(half_min_subnormal(DType::f64), 0.0);
  EXPECT_EQ(info(DType::bf16).max_finite, double{bf16_to_f32(0x7f7f)});
  EXPECT_EQ(info(DType::f16).max_finite, double{f16_to_f32(0x7bff)});
  EXPECT_EQ(element_size(DType::bf16), 2u);
  EXPECT_THROW(element_size(DType::q4_k), std::logic_error);
  EXPECT_THROW(unit_roundoff(DType::i64), std::logic_error);
}

TEST(DTypeWords, AreRead) {
  EXPECT_EQ(parse_float_dtype("fp16"), DType::f16);
  EXPECT_EQ(parse_float_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_float_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_float_dtype("i64"), std::nullopt);
  EXPECT_EQ(parse_float_dtype(""), std::nullopt);
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    EXPECT_EQ(parse_float_dtype(name(dtype)), dtype);
  }
  EXPECT_EQ(coarser(DType::f16, DType::bf16), DType::bf16);
  EXPECT_EQ(coarser(DType::f64, DType::f32), DType::f32);
}

}  // namespace
}  // namespace shardcheck
