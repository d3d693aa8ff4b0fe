// SPDX-License-Identifier: Apache-2.0
// Counter-based random numbers: element i of the stream (seed, name) is a pure function of (seed, name, i), so any
// slice of a random tensor is computed alone and equals the slice of the whole, whatever the partition.
// Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace shardcheck {

/// One block of Philox4x32-10: the readable twin of the vectorised loops in philox.cpp.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// The random stream of one tensor. Key: FNV-1a (64 bits) of the name; counter: (element index / 2, seed).
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);

  /// 64 uniform bits of element `index`.
  std::uint64_t bits(std::uint64_t index) const;

  /// A number in [0, bound), bound > 0. The bias of the modulo is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound, std::uint64_t index) const {
    return bits(index) % bound;
  }

  /// The four 16-bit quarters of bits(index), summed and centred: an integer in [-131070, 131070].
  std::int32_t sum(std::uint64_t index) const;

  /// sum() of elements first, first + 1, ...: the fast form.
  void fill_sums(std::uint64_t first, std::span<std::int32_t> out) const;

 private:
  std::uint64_t seed_;
  std::array<std::uint32_t, 2> key_;
};

/// One over the standard deviation of sum(), rounded to f32: sum() * kNormalUnit is exact in f64 (18 + 24 bits) and
/// has mean 0, variance 1 and the range +-3.47.
inline constexpr float kNormalUnit = 0x1.bb67aep-16f;

/// Element `index` of the normals of (seed, name), exact.
double normal(std::uint64_t seed, std::string_view name, std::uint64_t index);

/// Elements first, first + 1, ... of the normals of (seed, name).
void fill_normal(std::uint64_t seed, std::string_view name, std::uint64_t first, std::span<double> out);

}  // namespace shardcheck
