// SPDX-License-Identifier: Apache-2.0
// exp, free of branches and calls in f32, so that loops over it vectorise.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace shardcheck::cpu {

/// e^x, within 2 ulp; 0 below -104, infinity above 89, subnormal results kept, NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of e^r to degree 7 is off by 5e-9 at most.
inline float exponential(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;      // 15 bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;    // ln 2 - kLn2High
  constexpr float kRound = 0x1.8p23f;           // adding it rounds to an integer, which is then in the low bits
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  // 2^n as two factors, each a normal number, so that the last product alone may round into the subnormals.
  const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kRound);
  const std::int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * first * second;
}

inline double exponential(double x) { return std::exp(x); }

/// exp(a - b), and 0 where both are -inf: an empty softmax adds nothing.
template <typename A>
A exp_diff(A a, A b) {
  constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();
  return a == kMinusInfinity && b == kMinusInfinity ? A{0} : exponential(a - b);
}

/// 1 / (1 + e^-x), without overflow and with full relative accuracy at both ends.
template <typename A>
A sigmoid(A x) {
  const A e = exponential(-std::abs(x));
  return (x < 0 ? e : A{1}) / (A{1} + e);
}

}  // namespace shardcheck::cpu
