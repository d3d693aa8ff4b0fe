// SPDX-License-Identifier: Apache-2.0
#include "model/float_bits.hpp"

namespace shardcheck {
namespace {

/// RNE to a 16-bit format with `kFraction` stored fraction bits, smallest normal 2^kMinExponent and
/// `kExponentMask` as the bits of infinity.
template <int kFraction, int kMinExponent, std::uint32_t kExponentMask>
std::uint16_t round_f64(double value) {
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(value);
  const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 63) << 15;
  const std::uint64_t magnitude = bits & 0x7fffffffffffffffULL;
  constexpr std::uint64_t kInfinity = 0x7ff0000000000000ULL;
  constexpr std::uint64_t kMinNormal = static_cast<std::uint64_t>(1023 + kMinExponent) << 52;

  std::uint64_t result;
  if (magnitude > kInfinity) {
    result = kExponentMask | (1u << (kFraction - 1));
  } else if (magnitude < kMinNormal) {
    // An addend whose ulp is the format's smallest subnormal makes the hardware round at exactly that bit.
    constexpr std::uint64_t kAddend = static_cast<std::uint64_t>(1023 + kMinExponent - kFraction + 52)
                                      << 52;
    const double sum = std::bit_cast<double>(magnitude) + std::bit_cast<double>(kAddend);
    result = std::bit_cast<std::uint64_t>(sum) - kAddend;
  } else {
    constexpr int kShift = 52 - kFraction;
    constexpr std::uint64_t kRebias = static_cast<std::uint64_t>(1023 + kMinExponent - 1) << 52;
    const std::uint64_t odd = (magnitude >> kShift) & 1u;
    result = (magnitude - kRebias + ((std::uint64_t{1} << (kShift - 1)) - 1) + odd) >> kShift;
    if (result > kExponentMask) result = kExponentMask;
  }
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(result));
}

}  // namespace

std::uint16_t f64_to_bf16(double value) { return round_f64<7, -126, 0x7f80u>(value); }

std::uint16_t f64_to_f16(double value) { return round_f64<10, -14, 0x7c00u>(value); }

}  // namespace shardcheck
