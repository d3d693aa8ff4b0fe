// SPDX-License-Identifier: Apache-2.0
// Extents and indices in three dimensions, with CUDA's names and defaults.
#pragma once

#include <cstdint>

namespace shardcheck::emu {

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
  bool operator==(const uint3&) const = default;
};

struct dim3 {
  unsigned x = 1, y = 1, z = 1;

  constexpr dim3(unsigned x_extent = 1, unsigned y_extent = 1, unsigned z_extent = 1)
      : x(x_extent), y(y_extent), z(z_extent) {}
  constexpr std::uint64_t count() const { return std::uint64_t{x} * y * z; }
  bool operator==(const dim3&) const = default;
};

}  // namespace shardcheck::emu
