// SPDX-License-Identifier: Apache-2.0
// f32 <-> bf16 and fp16 on raw bits: round to nearest even, subnormals kept, NaN stays NaN.
// Inline and branch-light, so that loops over arrays vectorise. No compiler or Eigen half type is used
// anywhere: scalar half types are hundreds of times slower than these on x86-64-v3.
#pragma once

#include <bit>
#include <cstdint>

namespace shardcheck {

inline float bf16_to_f32(std::uint16_t h) { return std::bit_cast<float>(std::uint32_t{h} << 16); }

inline std::uint16_t f32_to_bf16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline float f16_to_f32(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  // A multiplication by 2^112 moves the exponent of normal and subnormal numbers alike, exactly.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;
  const std::uint32_t bits = magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(sign | bits);
}

inline std::uint16_t f32_to_f16(float f) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(f);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t magnitude = u & 0x7fffffffu;
  // Below 2^-14 the result is a multiple of 2^-24: adding 0.5 makes the hardware round at exactly that bit.
  const float tiny = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(tiny) - 0x3f000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t bits = magnitude < 0x38800000u ? subnormal : normal;
  bits = magnitude >= 0x477ff000u ? 0x7c00u : bits;  // 65520 and above round to infinity
  bits = magnitude > 0x7f800000u ? 0x7e00u : bits;
  return static_cast<std::uint16_t>(sign | bits);
}

/// RNE from f64 in one rounding (never through f32: a double rounding can differ from the correct one).
std::uint16_t f64_to_bf16(double value);
std::uint16_t f64_to_f16(double value);

}  // namespace shardcheck
