// SPDX-License-Identifier: Apache-2.0
// In which order the threads of a block run. Any order is legal for a kernel that is right.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "kernels/emu/warp.hpp"

namespace shardcheck::emu {

inline constexpr unsigned kMostThreads = 1024;  // per block
inline constexpr unsigned kMostWarps = kMostThreads / kWarpLanes;

/// SplitMix64: the next of a sequence of well mixed numbers.
inline std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Threads that can run, handed out in rounds. In order, a round is what is ready of the first warp that has any, so a
/// warp goes on until all its lanes wait for other warps. Else a round is all that is ready in the block, permuted.
class Schedule {
 public:
  static constexpr int kNobody = -1;

  /// `threads` threads, all ready.
  void start(unsigned threads, std::uint64_t order_seed) {
    random_ = order_seed;
    permuted_ = order_seed != 0;
    warps_ = (threads + kWarpLanes - 1) / kWarpLanes;
    last_lanes_ = ~0u >> (warps_ * kWarpLanes - threads);
    size_ = position_ = 0;
    make_all_ready();
  }

  void make_all_ready() {
    ready_.fill(~0u);
    ready_[warps_ - 1] = last_lanes_;
  }

  void make_ready(unsigned warp, std::uint32_t lanes) { ready_[warp] |= lanes; }

  /// The id of the thread that goes on now, or kNobody.
  int next() {
    if (position_ == size_ && !new_round()) return kNobody;
    return round_[position_++];
  }

 private:
  bool new_round() {
    size_ = position_ = 0;
    if (permuted_) {
      for (unsigned w = 0; w < warps_; ++w) append(w);
      for (unsigned i = size_; i > 1; --i) {
        const auto other = static_cast<unsigned>((next_random(random_) >> 32) * i >> 32);
        std::swap(round_[i - 1], round_[other]);
      }
      return size_ != 0;
    }
    for (unsigned w = 0; w < warps_ && size_ == 0; ++w) append(w);
    return size_ != 0;
  }

  void append(unsigned warp) {
    for (std::uint32_t lanes = std::exchange(ready_[warp], 0u); lanes != 0; lanes &= lanes - 1) {
      const auto lane = static_cast<unsigned>(std::countr_zero(lanes));
      round_[size_++] = static_cast<std::uint16_t>(warp * kWarpLanes + lane);
    }
  }

  std::uint64_t random_ = 0;
  bool permuted_ = false;
  unsigned warps_ = 0;
  std::uint32_t last_lanes_ = 0;      // that the last warp has
  unsigned size_ = 0, position_ = 0;  // of the round
  std::array<std::uint16_t, kMostThreads> round_;
  std::array<std::uint32_t, kMostWarps> ready_;
};

}  // namespace shardcheck::emu
