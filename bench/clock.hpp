// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

namespace shardcheck {

/// What a clock shows: CLOCK_MONOTONIC, or the CPU time of this thread or of all.
inline double seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace shardcheck
