// SPDX-License-Identifier: Apache-2.0
// The race check of shared memory against a naive twin: random programs of two warps, whose accesses the twin compares
// pair by pair by whole vector clocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/emu/simt_rig.hpp"

namespace shardcheck::gpu {
namespace {

constexpr int kThreads = 64;
constexpr int kElements = 4;

enum class Use { nothing, read, write, change };

/// What every thread does in a round, and how threads meet afterwards: all of them by __syncthreads, or the lanes of a
/// warp by a __syncwarp of the mask that they have (0: not at all).
struct Round {
  std::array<Use, kThreads> use = {};
  std::array<int, kThreads> element = {};
  std::array<unsigned, kThreads> mask = {};
  bool block_barrier = false;
};
using Program = std::vector<Round>;

int draw(std::mt19937& random, int below) {
  return static_cast<int>(random() % static_cast<unsigned>(below));
}

/// The lanes of a warp fall into `groups` at random; the last of several doesn't meet.
void draw_masks(Round& round, int warp, int groups, std::mt19937& random) {
  std::array<int, kWarp> group = {};
  for (int& g : group) g = draw(random, groups);
  for (int lane = 0; lane < kWarp; ++lane) {
    unsigned mask = 0;
    for (int other = 0; other < kWarp; ++other) {
      if (group[other] == group[lane]) mask |= 1u << other;
    }
    const bool alone = groups > 1 && group[lane] == groups - 1;
    round.mask[static_cast<std::size_t>(warp * kWarp + lane)] = alone ? 0 : mask;
  }
}

Program draw_program(std::mt19937& random) {
  Program program(static_cast<std::size_t>(2 + draw(random, 8)));
  const int lanes = std::array{
      3, 5, kWarp, kThreads}[static_cast<std::size_t>(draw(random, 4))];  // that do something
  const int elements = 1 + draw(random, kElements);
  const int writes = 1 + draw(random, 10);  // one of so many accesses
  const bool barriers = draw(random, 2) == 0;
  for (Round& round : program) {
    const Use favourite = draw(random, 3) != 0 ? Use::read : Use::change;
    for (int i = draw(random, 4); i > 0; --i) {
      const auto t = static_cast<std::size_t>(draw(random, lanes));
      round.use[t] = draw(random, writes) == 0 ? Use::write : favourite;
      round.element[t] = draw(random, elements);
    }
    round.block_barrier = barriers && draw(random, 3) == 0;
    for (int warp = 0; warp < kThreads / kWarp; ++warp)
      draw_masks(round, warp, 1 + draw(random, 3), random);
  }
  return program;
}

__global__ void run_program(const Program& program) {
  SHARED_ARRAY(int, x, kElements);
  if (threadIdx.x < kElements) x[threadIdx.x] = 0;
  __syncthreads();
  for (const Round& round : program) {
    const int element = round.element[threadIdx.x];
    switch (round.use[threadIdx.x]) {
      case Use::read:
        static_cast<void>(static_cast<int>(x[element]));
        break;
      case Use::write:
        x[element] = 1;
        break;
      case Use::change:
        atomicAdd(&x[element], 1);
        break;
      case Use::nothing:
        break;
    }
    if (round.block_barrier) {
      __syncthreads();
    } else if (round.mask[threadIdx.x] != 0) {
      __syncwarp(round.mask[threadIdx.x]);
    }
  }
}

// ---- The twin ----------------------------------------------------------------------------------------------------

using Clock = std::array<int, kThreads>;  // of each thread, the last round that is known

struct Access {
  std::size_t thread;
  int round;
  Use use;
  int element;
  Clock known;
};

bool conflict(const Access& a, const Access& b) {
  if (a.thread == b.thread || a.element != b.element) return false;
  if (a.use == Use::change && b.use == Use::change) return false;
  if (a.use == Use::read && b.use == Use::read) return false;
  const bool ordered = b.known[a.thread] >= a.round || a.known[b.thread] >= b.round;
  return !ordered;
}

bool has_race(const Program& program) {
  std::array<Clock, kThreads> known;
  for (Clock& clock : known) clock.fill(-1);
  std::vector<Access> accesses;
  for (std::size_t r = 0; r < program.size(); ++r) {
    const Round& round = program[r];
    for (std::size_t t = 0; t < kThreads; ++t) {
      known[t][t] = static_cast<int>(r);
      if (round.use[t] != Use::nothing) {
        accesses.push_back({t, static_cast<int>(r), round.use[t], round.element[t], known[t]});
      }
    }
    const std::array<Clock, kThreads> before = known;
    for (std::size_t t = 0; t < kThreads; ++t) {
      for (std::size_t u = 0; u < kThreads; ++u) {
        const bool same_group = t / kWarp == u / kWarp && (round.mask[t] >> u % kWarp & 1u) != 0;
        if (!round.block_barrier && !same_group) continue;
        for (std::size_t v = 0; v < kThreads; ++v)
          known[t][v] = std::max(known[t][v], before[u][v]);
      }
    }
  }
  for (const Access& a : accesses) {
    for (const Access& b : accesses) {
      if (conflict(a, b)) return true;
    }
  }
  return false;
}

TEST(SimtOrder, FindsExactlyTheRacesOfTheTwin) {
  std::mt19937 random(20);
  int racy = 0, clean = 0;
  for (int i = 0; i < 2000; ++i) {
    const Program program = draw_program(random);
    const bool expected = has_race(program);
    (expected ? racy : clean) += 1;
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1} + random()}) {
      const std::string error = error_of({"random", {1}, {kThreads}}, {.order_seed = seed},
                                         [&] { run_program(program); });
      ASSERT_EQ(!error.empty(), expected)
          << "program " << i << ", order seed " << seed << ": " << error;
      ASSERT_EQ(error.find("in the same barrier interval") != std::string::npos, expected) << error;
    }
  }
  EXPECT_GT(racy, 400);
  EXPECT_GT(clean, 400);
}

/// Lane 2 meets lane 0, then lane 1, and writes what both have read; they never meet each other.
__global__ void meet_one_by_one(bool meets_lane_1) {
  SHARED_ARRAY(int, x, 1);
  if (threadIdx.x == 0) x[0] = 0;
  __syncthreads();
  if (threadIdx.x == 0) static_cast<void>(static_cast<int>(x[0]));
  if (threadIdx.x == 0 || threadIdx.x == 2) __syncwarp(0b101u);
  if (threadIdx.x == 1) static_cast<void>(static_cast<int>(x[0]));
  if (threadIdx.x == 1 && meets_lane_1) __syncwarp(0b110u);
  if (threadIdx.x == 2) {
    if (meets_lane_1) __syncwarp(0b110u);
    x[0] = 1;
  }
}

TEST(SimtOrder, LanesThatMeetOneByOne) {
  const emu::Grid grid{"meet", {1}, {kWarp}};
  for (const std::uint64_t seed : order_seeds()) {
    EXPECT_EQ(error_of(grid, {.order_seed = seed}, [] { meet_one_by_one(true); }), "");
  }
  expect_fault(grid, [] { meet_one_by_one(false); }, {"shared array 'x': element 0 is "});
}

}  // namespace
}  // namespace shardcheck::gpu
