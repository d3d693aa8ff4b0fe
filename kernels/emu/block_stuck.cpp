// SPDX-License-Identifier: Apache-2.0
// What to say of a block whose threads all wait.
#include <fmt/format.h>

#include <bit>

#include "kernels/emu/block.hpp"

namespace shardcheck::emu {

/// Why nobody can go on though some threads have not ended.
std::string BlockRunner::stuck() const {
  for (unsigned w = 0; w * kWarpLanes < threads_used_; ++w) {
    if (warps_[w].group_count != 0) return missing_lane(warps_[w], warps_[w].groups[0]);
  }
  const Thread* waiting = threads_.data();
  while (waiting->state != ThreadState::at_barrier) ++waiting;
  const Thread* ended = threads_.data();
  while (ended->state != ThreadState::ended) ++ended;
  return message(waiting->index, fmt::format("{}() at {} is reached by {} of {} threads; thread {} "
                                             "has ended without it. All threads of "
                                             "a block must come to a barrier",
                                             barrier_name_, to_string(barrier_place_), at_barrier_,
                                             threads_used_, to_string(ended->index)));
}

std::string BlockRunner::missing_lane(const Warp& warp, const WarpGroup& group) const {
  const auto thread_of = [&](std::uint32_t lanes) -> const Thread& {
    return threads_[warp.first_thread + static_cast<unsigned>(std::countr_zero(lanes))];
  };
  const Thread& waiting = thread_of(group.arrived);
  const Thread& missing = thread_of(group.lanes & ~group.arrived);
  std::string instead = "has ended";
  if (missing.state == ThreadState::at_barrier) {
    instead = fmt::format("waits at {}() at {}", barrier_name_, to_string(missing.waits_at));
  } else if (missing.state == ThreadState::at_warp_operation) {
    const auto* other = warp.groups.data();
    while ((other->arrived & missing.lane_bit()) == 0) ++other;
    instead = fmt::format("waits at {} with mask {:#010x} at {}", other->operation->name,
                          other->lanes, to_string(missing.waits_at));
  }
  return message(
      waiting.index,
      fmt::format("{} with mask {:#010x} at {} is reached by {} of {} lanes; lane {}, thread "
                  "{}, {}. The lanes that a mask names must come to the same operation with "
                  "the same mask",
                  group.operation->name, group.lanes, to_string(waiting.waits_at),
                  std::popcount(group.arrived), std::popcount(group.lanes), missing.lane,
                  to_string(missing.index), instead));
}

}  // namespace shardcheck::emu
