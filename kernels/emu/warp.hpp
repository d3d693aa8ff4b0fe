// SPDX-License-Identifier: Apache-2.0
// A warp: what its lanes have exchanged by warp operations, and what __syncwarp has put in order.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace shardcheck::emu {

inline constexpr unsigned kWarpLanes = 32;

/// Which accesses of a warp's lanes happened before which. Only __syncwarp orders memory; shuffles and votes don't. An
/// access is stamped with the number of __syncwarps that the warp has done by then.
class WarpOrder {
 public:
  void restart() {
    stamp_ = everyone_ = 0;
    if (partial_) seen_ = {};
    partial_ = false;
  }

  std::uint32_t stamp() const { return stamp_; }

  /// True if all lanes know of what any lane did at `stamp`.
  bool known_to_all(std::uint32_t stamp) const { return stamp < everyone_; }

  /// True if what lane `first` did at `stamp` happened before what lane `then` does now.
  bool ordered(unsigned first, std::uint32_t stamp, unsigned then) const {
    return first == then || stamp < everyone_ || (partial_ && stamp < seen_[then][first]);
  }

  /// A __syncwarp of `lanes`, which are all that the warp has if `whole`.
  void synchronize(std::uint32_t lanes, bool whole) {
    ++stamp_;
    if (whole) {
      everyone_ = stamp_;
      return;
    }
    partial_ = true;
    std::array<std::uint32_t, kWarpLanes> joined = {};
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const auto& known = seen_[static_cast<unsigned>(std::countr_zero(rest))];
      for (unsigned lane = 0; lane < kWarpLanes; ++lane) {
        joined[lane] = std::max(joined[lane], known[lane]);
      }
    }
    for (unsigned lane = 0; lane < kWarpLanes; ++lane) {
      if (lanes >> lane & 1u) joined[lane] = stamp_;
    }
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      seen_[static_cast<unsigned>(std::countr_zero(rest))] = joined;
    }
  }

 private:
  std::uint32_t stamp_ = 0;
  std::uint32_t everyone_ = 0;  // all lanes know of what has a lower stamp
  bool partial_ = false;
  // seen_[lane][other]: `lane` knows of what `other` did before this stamp.
  std::array<std::array<std::uint32_t, kWarpLanes>, kWarpLanes> seen_ = {};
};

/// A warp operation. Lanes meet if they name the same one (and the same lanes); then `combine` makes every lane's
/// result from what they brought: a 64-bit value and, in shuffles, the lane whose value is wanted.
struct WarpOperation {
  const char* name;
  void (*combine)(std::uint32_t lanes, const std::uint64_t* values, const std::uint8_t* sources,
                  std::uint64_t* results);
  bool orders_memory = false;
};

/// Lanes of a warp on their way through a warp operation.
struct WarpGroup {
  const WarpOperation* operation;
  std::uint32_t lanes;    // the mask
  std::uint32_t arrived;  // those that wait
};

struct Warp {
  std::uint16_t index = 0;  // in the block
  std::uint32_t lanes = 0;  // those that exist
  std::uint32_t first_thread = 0;
  WarpOrder order;
  std::array<WarpGroup, kWarpLanes> groups;
  unsigned group_count = 0;
  std::array<std::uint64_t, kWarpLanes> values = {};
  std::array<std::uint8_t, kWarpLanes> sources = {};
  std::array<std::uint64_t, kWarpLanes> results = {};
};

}  // namespace shardcheck::emu
