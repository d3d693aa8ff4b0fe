// SPDX-License-Identifier: Apache-2.0
// Barriers, votes, shuffles and reductions among the threads of a block and the lanes of a warp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "kernels/emu/operations.hpp"

namespace shardcheck::emu {

using Place = std::source_location;

inline void __syncthreads(const Place& at = Place::current()) {
  block_barrier("__syncthreads", false, at);
}
inline int __syncthreads_count(int predicate, const Place& at = Place::current()) {
  return block_barrier("__syncthreads_count", predicate != 0, at);
}
inline int __syncthreads_or(int predicate, const Place& at = Place::current()) {
  return block_barrier("__syncthreads_or", predicate != 0, at) != 0;
}
inline int __syncthreads_and(int predicate, const Place& at = Place::current()) {
  return block_barrier("__syncthreads_and", predicate == 0, at) == 0;
}

// ---- How lanes' values become their results ---------------------------------------------------------------------

/// fold(a, b) of all lanes' values as type T, given to each of them.
template <typename T, typename Fold>
void fold_lanes(std::uint32_t lanes, const std::uint64_t* values, std::uint64_t* results, Fold fold) {
  const int first = std::countr_zero(lanes);
  T total = static_cast<T>(values[first]);
  for (std::uint32_t rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1) {
    total = fold(total, static_cast<T>(values[std::countr_zero(rest)]));
  }
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    results[std::countr_zero(rest)] = static_cast<std::uint64_t>(total);
  }
}

inline void combine_shuffle(std::uint32_t lanes, const std::uint64_t* values,
                            const std::uint8_t* sources, std::uint64_t* results) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    results[lane] = values[sources[lane]];
  }
}

inline void combine_ballot(std::uint32_t lanes, const std::uint64_t* values, const std::uint8_t*,
                           std::uint64_t* results) {
  std::uint64_t ballot = 0;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    ballot |= values[lane] << lane;
  }
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    results[std::countr_zero(rest)] = ballot;
}

inline void combine_match(std::uint32_t lanes, const std::uint64_t* values, const std::uint8_t*,
                          std::uint64_t* results) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    results[lane] = 0;
    for (std::uint32_t others = lanes; others != 0; others &= others - 1) {
      const int other = std::countr_zero(others);
      if (values[other] == values[lane]) results[lane] |= std::uint64_t{1} << other;
    }
  }
}

template <typename T, typename Fold>
void combine_reduce(std::uint32_t lanes, const std::uint64_t* values, const std::uint8_t*,
                    std::uint64_t* results) {
  fold_lanes<T>(lanes, values, results, Fold{});
}

struct Sum {
  unsigned operator()(unsigned a, unsigned b) const { return a + b; }
};
struct Least {
  template <typename T>
  T operator()(T a, T b) const {
    return std::min(a, b);
  }
};
struct Greatest {
  template <typename T>
  T operator()(T a, T b) const {
    return std::max(a, b);
  }
};

inline constexpr WarpOperation kSyncWarp{"__syncwarp", nullptr, true};
inline constexpr WarpOperation kBallot{"__ballot_sync", combine_ballot};
inline constexpr WarpOperation kAny{"__any_sync", combine_ballot};
inline constexpr WarpOperation kAll{"__all_sync", combine_ballot};
// One per size: lanes that shuffle different types don't meet.
template <std::size_t size>
inline constexpr WarpOperation kMatchAny{"__match_any_sync", combine_match};
template <std::size_t size>
inline constexpr WarpOperation kShuffle{"__shfl_sync", combine_shuffle};
template <std::size_t size>
inline constexpr WarpOperation kShuffleUp{"__shfl_up_sync", combine_shuffle};
template <std::size_t size>
inline constexpr WarpOperation kShuffleDown{"__shfl_down_sync", combine_shuffle};
template <std::size_t size>
inline constexpr WarpOperation kShuffleXor{"__shfl_xor_sync", combine_shuffle};
template <typename T>
inline constexpr WarpOperation kReduceAdd{"__reduce_add_sync", combine_reduce<unsigned, Sum>};
template <typename T>
inline constexpr WarpOperation kReduceMin{"__reduce_min_sync", combine_reduce<T, Least>};
template <typename T>
inline constexpr WarpOperation kReduceMax{"__reduce_max_sync", combine_reduce<T, Greatest>};

inline unsigned lane_of_current_thread() {
  return current_thread == nullptr ? 0 : current_thread->lane;
}

// ---- Votes ------------------------------------------------------------------------------------------------------

inline void __syncwarp(unsigned mask = 0xffffffffu, const Place& at = Place::current()) {
  warp_operation(kSyncWarp, mask, 0, lane_of_current_thread(), at);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const Place& at = Place::current()) {
  return static_cast<unsigned>(
      warp_operation(kBallot, mask, predicate != 0, lane_of_current_thread(), at));
}
inline int __any_sync(unsigned mask, int predicate, const Place& at = Place::current()) {
  return warp_operation(kAny, mask, predicate != 0, lane_of_current_thread(), at) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const Place& at = Place::current()) {
  return warp_operation(kAll, mask, predicate != 0, lane_of_current_thread(), at) == mask;
}

// ---- Shuffles: of int, unsigned, the 64-bit integers, float and double -------------------------------------------

template <typename T>
concept Shuffled = std::is_arithmetic_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

template <Shuffled T>
std::uint64_t shuffle_bits(T value) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return std::bit_cast<std::uint64_t>(value);
  }
}
template <Shuffled T>
T from_shuffle_bits(std::uint64_t bits) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  } else {
    return std::bit_cast<T>(bits);
  }
}

/// The lanes of a warp fall into segments of `width`. Throws DeviceError unless it is 1, 2, 4, 8, 16 or 32.
struct Segment {
  unsigned lane, first, end;
  Segment(int width, const char* function);
};

template <Shuffled T>
T shuffle(const WarpOperation& operation, unsigned mask, T value, unsigned source, const Place& at) {
  return from_shuffle_bits<T>(warp_operation(operation, mask, shuffle_bits(value), source, at));
}

/// The value of lane `source` of the segment, modulo its width.
template <Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const Place& at = Place::current()) {
  const Segment segment(width, kShuffle<sizeof(T)>.name);
  const unsigned lane = segment.first +
                        (static_cast<unsigned>(source) & (static_cast<unsigned>(width) - 1));
  return shuffle(kShuffle<sizeof(T)>, mask, value, lane, at);
}
/// The value of the lane `delta` below; the lane's own where that is outside of the segment.
template <Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 const Place& at = Place::current()) {
  const Segment segment(width, kShuffleUp<sizeof(T)>.name);
  const bool inside = delta <= segment.lane - segment.first;
  return shuffle(kShuffleUp<sizeof(T)>, mask, value, inside ? segment.lane - delta : segment.lane, at);
}
/// The value of the lane `delta` above; the lane's own where that is outside of the segment.
template <Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   const Place& at = Place::current()) {
  const Segment segment(width, kShuffleDown<sizeof(T)>.name);
  const bool inside = delta < segment.end - segment.lane;
  return shuffle(kShuffleDown<sizeof(T)>, mask, value, inside ? segment.lane + delta : segment.lane,
                 at);
}
/// The value of lane (lane ^ bits); the lane's own where that lies in a later segment.
template <Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, const Place& at = Place::current()) {
  const Segment segment(width, kShuffleXor<sizeof(T)>.name);
  const unsigned lane = (segment.lane ^ static_cast<unsigned>(bits)) & 31u;
  return shuffle(kShuffleXor<sizeof(T)>, mask, value, lane < segment.end ? lane : segment.lane, at);
}

// ---- Reductions and matches (sm_80 and later) ---------------------------------------------------------------------

template <typename T>
concept Reduced = std::is_same_v<T, int> || std::is_same_v<T, unsigned>;

template <Reduced T>
T __reduce_add_sync(unsigned mask, T value, const Place& at = Place::current()) {
  return shuffle(kReduceAdd<T>, mask, value, lane_of_current_thread(), at);
}
template <Reduced T>
T __reduce_min_sync(unsigned mask, T value, const Place& at = Place::current()) {
  return shuffle(kReduceMin<T>, mask, value, lane_of_current_thread(), at);
}
template <Reduced T>
T __reduce_max_sync(unsigned mask, T value, const Place& at = Place::current()) {
  return shuffle(kReduceMax<T>, mask, value, lane_of_current_thread(), at);
}
/// The lanes whose value has the same bits.
template <Shuffled T>
unsigned __match_any_sync(unsigned mask, T value, const Place& at = Place::current()) {
  return static_cast<unsigned>(warp_operation(kMatchAny<sizeof(T)>, mask, shuffle_bits(value),
                                              lane_of_current_thread(), at));
}

}  // namespace shardcheck::emu
