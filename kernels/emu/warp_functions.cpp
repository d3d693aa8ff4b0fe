// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/warp_functions.hpp"

#include <fmt/format.h>

namespace shardcheck::emu {

Segment::Segment(int width, const char* function) : lane(lane_of_current_thread()) {
  if (width < 1 || width > static_cast<int>(kWarpLanes) ||
      !std::has_single_bit(static_cast<unsigned>(width))) {
    fail(fmt::format("{}: width {} is not one of 1, 2, 4, 8, 16, 32", function, width));
  }
  first = lane & ~(static_cast<unsigned>(width) - 1);
  end = first + static_cast<unsigned>(width);
}

}  // namespace shardcheck::emu
