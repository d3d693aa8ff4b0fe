// SPDX-License-Identifier: Apache-2.0
// Between a rank's own numbering of its rows or columns and that of the whole.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"

namespace shardcheck::field {

/// Local index of a global one, or -1 where the ranges don't hold it.
inline std::int64_t local_index(std::int64_t global, OwnedRanges owned) {
  std::int64_t before = 0;
  for (const auto& [begin, end] : owned) {
    if (global >= begin && global < end) return before + global - begin;
    before += end - begin;
  }
  return -1;
}

}  // namespace shardcheck::field
