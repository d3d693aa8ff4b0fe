// SPDX-License-Identifier: Apache-2.0
// Fresh memory is filled with one NaN (kernels/device.hpp: poison), whose bits tell it from the NaN of an overflow.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

// The NaN that host devices poison memory with: quiet, positive, without payload. Arithmetic on x86 makes a negative one.
bool is_poison(const HostTensor& tensor, std::int64_t i) {
  const std::byte* const at = tensor.data() +
                              static_cast<std::size_t>(i) * element_size(tensor.dtype());
  const auto equals = [at](auto bits) { return std::memcmp(at, &bits, sizeof(bits)) == 0; };
  switch (tensor.dtype()) {
    case DType::f64:
      return equals(std::uint64_t{0x7ff8000000000000u});
    case DType::f32:
      return equals(std::uint32_t{0x7fc00000u});
    case DType::bf16:
      return equals(std::uint16_t{0x7fc0u});
    case DType::f16:
      return equals(std::uint16_t{0x7e00u});
    default:
      return false;
  }
}

}  // namespace

void explain_not_finite(const RankCase& rank, Explanations& found) {
  const TapReader& output = rank.op().output();
  std::int64_t poison = 0, nan = 0, infinite = 0, all = 0;
  for (std::size_t s = 0; s < output.steps(); ++s) {
    const HostTensor& part = output.tap(s).ranks[static_cast<std::size_t>(rank.rank())];
    all += part.elements();
    for (std::int64_t i = 0; i < part.elements(); ++i) {
      const double value = part.at(i);
      if (std::isfinite(value)) continue;
      poison += is_poison(part, i) ? 1 : 0;
      (std::isnan(value) ? nan : infinite) += 1;
    }
  }
  if (nan + infinite == 0) return;
  double largest = 0.0;
  for (const double value : rank.expected().y.values())
    largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  if (poison > 0) {
    found.add("never_written", fmt::format("{} of {} elements are the NaN that fresh memory is "
                                           "filled with: they were never written, or "
                                           "come from memory that was not",
                                           poison, all));
    return;
  }
  found.add(
      "not_finite",
      fmt::format(
          "{} of {} elements are NaN and {} infinite, though the op's inputs are finite and its "
          "largest result is {:.3g} ({} reaches {:.3g})",
          nan, all, infinite, largest, name(output.dtype()), info(output.dtype()).max_finite));
}

}  // namespace shardcheck
