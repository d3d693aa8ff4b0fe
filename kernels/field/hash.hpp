// SPDX-License-Identifier: Apache-2.0
// Random functions for what the field has no arithmetic for: H(f, site, x) is one residue for each function f, place in
// the model and exact argument, drawn anew by every seed. Equal arguments give equal values, and different ones
// unrelated values: a program that gives the function another argument is seen, whichever function it is.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/field/residue.hpp"

namespace shardcheck::field {

enum class Function { exp, log, rsqrt, sigmoid, phi };
std::string_view name(Function function);

/// H(f, site, .) of one seed. Counts its calls.
class Hash {
 public:
  Hash(std::uint64_t seed, std::string_view function, std::string_view site);

  /// Poison stays poison.
  Residue operator()(Residue x) {
    ++calls_;
    return x.poisoned() ? kPoisoned : at(x.bits);
  }
  /// The value for any word.
  Residue at(std::uint64_t word) const {
    const std::uint64_t value = spread(spread(word + first_) ^ second_) >> 3;  // 61 bits
    return {value == kPrime ? 0 : value};
  }
  std::int64_t calls() const { return calls_; }

 private:
  /// A bijection that spreads every bit over all others.
  static std::uint64_t spread(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  static std::uint64_t absorb(std::uint64_t key, std::string_view text);

  std::uint64_t first_, second_;
  std::int64_t calls_ = 0;
};

/// What a program is given rather than computes, as residues of one seed. These need no site.
class Givens {
 public:
  explicit Givens(std::uint64_t seed);
  /// A scalar of the model (eps, the scale of attention).
  Residue constant(double value) const { return of(constant_, value); }
  Residue cosine(double angle) const { return of(cosine_, angle); }
  Residue sine(double angle) const { return of(sine_, angle); }

 private:
  static Residue of(const Hash& hash, double value);

  Hash constant_, cosine_, sine_;
};

/// Elements of the weight or input `name`; an element is told by its flat index in the whole tensor. Tied weights have
/// one name, so a shard holds the very elements of the whole.
inline Hash elements_of(std::uint64_t seed, std::string_view name) {
  return {seed, "element", name};
}

}  // namespace shardcheck::field
