// SPDX-License-Identifier: Apache-2.0
// Arithmetic modulo the prime p = 2^61 - 1. A residue is stored canonically, in [0, p); every other word is poison,
// which spreads through sums and products as NaN does. Since 2^61 = 1 modulo p, reducing is shifting and adding.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shardcheck::field {

inline constexpr std::uint64_t kPrime = (std::uint64_t{1} << 61) - 1;
inline constexpr std::uint64_t kPoison = ~std::uint64_t{0};

__extension__ using Wide = unsigned __int128;

/// x modulo p.
constexpr std::uint64_t reduce(Wide x) {
  const std::uint64_t low = static_cast<std::uint64_t>(x) & kPrime;
  const Wide high = x >> 61;  // below 2^67
  const std::uint64_t folded = low + (static_cast<std::uint64_t>(high) & kPrime) +
                               static_cast<std::uint64_t>(high >> 61);
  const std::uint64_t once = (folded & kPrime) + (folded >> 61);  // at most p + 1
  return once >= kPrime ? once - kPrime : once;
}

/// An element of the field, or poison. Ordered as integers, so that poison is the largest, as argmax wants of NaN.
struct Residue {
  std::uint64_t bits = 0;

  constexpr bool poisoned() const { return bits >= kPrime; }
  constexpr auto operator<=>(const Residue&) const = default;
};
inline constexpr Residue kPoisoned{kPoison};

constexpr Residue operator+(Residue a, Residue b) {
  if (a.poisoned() || b.poisoned()) return kPoisoned;
  const std::uint64_t sum = a.bits + b.bits;
  return {sum >= kPrime ? sum - kPrime : sum};
}

constexpr Residue operator-(Residue a, Residue b) {
  if (a.poisoned() || b.poisoned()) return kPoisoned;
  return {a.bits >= b.bits ? a.bits - b.bits : a.bits + kPrime - b.bits};
}

constexpr Residue operator*(Residue a, Residue b) {
  if (a.poisoned() || b.poisoned()) return kPoisoned;
  return {reduce(Wide{a.bits} * b.bits)};
}

/// 1 / a by Fermat: a^(p - 2). Zero has no inverse: poison.
constexpr Residue inverse(Residue a) {
  if (a.poisoned() || a.bits == 0) return kPoisoned;
  // p - 2 = 2^61 - 3: 58 ones, then 101.
  Residue result{1};
  for (int bit = 60; bit >= 0; --bit) {
    result = result * result;
    if (((kPrime - 2) >> bit) & 1u) result = result * a;
  }
  return result;
}

/// A count as a residue: what a mean is divided by.
constexpr Residue count(std::int64_t n) { return {static_cast<std::uint64_t>(n) % kPrime}; }

}  // namespace shardcheck::field
