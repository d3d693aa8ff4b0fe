// SPDX-License-Identifier: Apache-2.0
// Units are types: Bytes / BytesPerSecond is Seconds, and Bytes + Seconds doesn't compile.
#pragma once

#include <compare>
#include <cstdint>

namespace shardcheck::sim {

/// bytes^B seconds^S flops^F. Only the quantities that a cost is made of exist: a product or quotient that would be
/// anything else (bytes squared, bytes per flop) doesn't compile.
template <int B, int S, int F>
inline constexpr bool is_quantity = (B == 1 && S == 0 && F == 0) || (B == 0 && S == 1 && F == 0) ||
                                    (B == 0 && S == 0 && F == 1) || (B == 1 && S == -1 && F == 0) ||
                                    (B == 0 && S == -1 && F == 1);

template <int B, int S, int F>
requires is_quantity<B, S, F>
struct Quantity {
  double value = 0.0;  // in bytes, seconds, flops, bytes/s, flops/s

  constexpr Quantity() = default;
  constexpr explicit Quantity(double v) : value(v) {}

  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(double k, Quantity a) { return Quantity(k * a.value); }
  friend constexpr Quantity operator*(Quantity a, double k) { return Quantity(a.value * k); }
  friend constexpr Quantity operator/(Quantity a, double k) { return Quantity(a.value / k); }
  friend constexpr double operator/(Quantity a, Quantity b) { return a.value / b.value; }
  friend constexpr auto operator<=>(Quantity a, Quantity b) = default;
};

using Bytes = Quantity<1, 0, 0>;
using Seconds = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;
using BytesPerSecond = Quantity<1, -1, 0>;
using FlopsPerSecond = Quantity<0, -1, 1>;

template <int B, int S, int F, int B2, int S2, int F2>
requires is_quantity<B - B2, S - S2, F - F2>
constexpr auto operator/(Quantity<B, S, F> a, Quantity<B2, S2, F2> b) {
  return Quantity<B - B2, S - S2, F - F2>(a.value / b.value);
}

template <int B, int S, int F, int B2, int S2, int F2>
requires is_quantity<B + B2, S + S2, F + F2>
constexpr auto operator*(Quantity<B, S, F> a, Quantity<B2, S2, F2> b) {
  return Quantity<B + B2, S + S2, F + F2>(a.value * b.value);
}

/// Counts of a ledger as quantities: exact up to 2^53.
constexpr Bytes bytes(std::int64_t n) { return Bytes(static_cast<double>(n)); }
constexpr Flops flops(std::int64_t n) { return Flops(static_cast<double>(n)); }

constexpr Seconds microseconds(double n) { return Seconds(n * 1e-6); }

}  // namespace shardcheck::sim
