// SPDX-License-Identifier: Apache-2.0
// exp in lanes: in f32 free of branches and calls, in f64 the C library's.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lanes.hpp"

namespace shardcheck::cpu {

/// e^x, within 2 ulp; 0 below -104, infinity above 89, subnormal results kept, NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of e^r to degree 7 is off by 5.2e-9 at most.
inline Vector<float> exponential(Vector<float> x) {
  using Int = std::int32_t __attribute__((vector_size(32)));
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;    // 15 bits, so that n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // ln 2 - kLn2High
  constexpr float kRound = 0x1.8p23f;         // adding it rounds to an integer, which then stands in the low bits
  constexpr std::int32_t kRoundBits = 0x4b400000;
  constexpr std::int32_t kBias = 127;
  constexpr int kFractionBits = 23;
  x = x < -104.0f ? broadcast(-104.0f) : x;
  x = x > 89.0f ? broadcast(89.0f) : x;
  const Vector<float> shifted = x * kLog2E + kRound;
  const Vector<float> n = shifted - kRound;
  const Vector<float> r = (x - n * kLn2High) - n * kLn2Low;
  Vector<float> p = broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  // 2^n as two factors, both normal numbers, so that only the last product may round into the subnormals.
  const Int exponent = reinterpret_cast<Int>(shifted) - kRoundBits;
  const Int half = exponent >> 1;
  const Int first = (half + kBias) << kFractionBits;
  const Int second = (exponent - half + kBias) << kFractionBits;
  return p * reinterpret_cast<Vector<float>>(first) * reinterpret_cast<Vector<float>>(second);
}

inline Vector<double> exponential(Vector<double> x) {
  for (int lane = 0; lane < kLanes<double>; ++lane) x[lane] = std::exp(x[lane]);
  return x;
}

/// exp(a - b), and 0 where both are -inf: an empty softmax adds nothing.
template <typename A>
A exp_diff(A a, A b) {
  constexpr A kMinusInfinity = -std::numeric_limits<A>::infinity();
  return a == kMinusInfinity && b == kMinusInfinity ? A{0} : exponential(broadcast(a - b))[0];
}

/// 1 / (1 + e^-x), without overflow and with full relative accuracy at both ends.
template <typename A>
Vector<A> sigmoid(const Vector<A>& x) {
  const Vector<A> e = exponential(x < A{0} ? x : -x);  // e^-|x|
  return (x < A{0} ? e : broadcast(A{1})) / (A{1} + e);
}

}  // namespace shardcheck::cpu
