// SPDX-License-Identifier: Apache-2.0
// The kernel language on the CPU: right kernels give CUDA's results, in every order of their threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/emu/simt_rig.hpp"

namespace shardcheck::gpu {
namespace {

// ---- Indices -----------------------------------------------------------------------------------------------------

__global__ void write_indices(View<int> out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out(block, thread) += static_cast<int>(1 + threadIdx.x + 100 * threadIdx.y + 10000 * threadIdx.z);
}

TEST(SimtLanguage, EveryThreadOfEveryBlockRunsOnceWithItsIndices) {
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(3 * 2 * 4 * (5 * 3 * 2));
    const auto view = view_of(out, 24, 30);
    emu::run_grid({"indices", {3, 2, 4}, {5, 3, 2}}, {.order_seed = seed},
                  [&] { write_indices(view); });
    for (int block = 0; block < 24; ++block) {
      for (int thread = 0; thread < 30; ++thread) {
        EXPECT_EQ(view(block, thread), 1 + thread % 5 + 100 * (thread / 5 % 3) + 10000 * (thread / 15));
      }
    }
  }
}

TEST(SimtLanguage, ASeedPermutesBlocksAndThreads) {
  std::set<std::vector<unsigned>> orders;
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<unsigned> order, repeated;
    const emu::Grid grid{"order", {7}, {70}};
    emu::run_grid(grid, {.order_seed = seed}, [&] { order.push_back(blockIdx.x * 70 + threadIdx.x); });
    emu::run_grid(grid, {.order_seed = seed},
                  [&] { repeated.push_back(blockIdx.x * 70 + threadIdx.x); });
    EXPECT_EQ(order, repeated);
    EXPECT_EQ(std::is_sorted(order.begin(), order.end()), seed == 0);
    EXPECT_EQ((std::set<unsigned>(order.begin(), order.end()).size()), 490u);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), order_seeds().size());
}

// ---- Shared memory and block barriers ----------------------------------------------------------------------------

template <typename T, typename Shared>
__device__ T sum_of_block(T x, Shared of_warps) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  T total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) total += of_warps[warp];
  __syncthreads();
  return total;
}

template <typename T>
__global__ void __launch_bounds__(256) sum_rows(View<const T> in, View<T> sums) {
  SHARED_ARRAY(T, of_warps, 8);
  T x = 0;
  for (std::int64_t c = threadIdx.x; c < in.cols; c += blockDim.x) x += in(blockIdx.x, c);
  const T sum = sum_of_block(x, of_warps);
  const T twice = sum_of_block(sum, of_warps);  // the scratch is free again
  sums(threadIdx.x, blockIdx.x) = sum + twice;
}

template <typename T>
void check_sums() {
  const int rows = 3, cols = 1000, threads = 256;
  std::vector<T> in(rows * cols), expected(rows);
  for (int i = 0; i < rows * cols; ++i) in[i] = static_cast<T>(i % 17 - i / cols);
  for (int i = 0; i < rows * cols; ++i) expected[i / cols] += in[i];
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<T> sums(threads * rows);
    const View<const T> view{in.data(), rows, cols, cols, 1};
    emu::run_grid({"sum", {3}, {256}}, {.order_seed = seed},
                  [&] { sum_rows<T>(view, view_of(sums, threads, rows)); });
    for (int i = 0; i < threads * rows; ++i) {
      EXPECT_EQ(sums[i], static_cast<T>(257 * expected[i % rows])) << "order seed " << seed;
    }
  }
}

TEST(SimtLanguage, BlockSumsOfEveryType) {
  check_sums<int>();
  check_sums<std::int64_t>();
  check_sums<float>();
  check_sums<double>();
}

__global__ void transpose(View<const int> in, View<int> out, int fill) {
  constexpr int kTile = 16;
  DYNAMIC_SHARED(int, tile);
  const std::int64_t row = blockIdx.y * kTile + threadIdx.y, col = blockIdx.x * kTile + threadIdx.x;
  const auto column = tile + threadIdx.x;
  column[threadIdx.y * (kTile + 1)] = row < in.rows && col < in.cols ? in(row, col) : fill;
  __syncthreads();
  const std::int64_t out_row = blockIdx.x * kTile + threadIdx.y,
                     out_col = blockIdx.y * kTile + threadIdx.x;
  if (out_row < out.rows && out_col < out.cols)
    out(out_row, out_col) = tile[threadIdx.x * (kTile + 1) + threadIdx.y];
}

TEST(SimtLanguage, DynamicSharedMemoryInTwoDimensions) {
  const std::int64_t rows = 37, cols = 50;
  std::vector<int> in(37 * 50);
  std::iota(in.begin(), in.end(), 1);
  const View<const int> view{in.data(), rows, cols, cols, 1};
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(in.size());
    const auto turned = view_of(out, cols, rows);
    emu::run_grid({"transpose", {4, 3}, {16, 16}, 16 * 17 * sizeof(int)}, {.order_seed = seed},
                  [&] { transpose(view, turned, -1); });
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(turned(c, r), view(r, c)) << "order seed " << seed;
    }
  }
}

struct Pair {
  float value;
  int index;
};

__global__ void elements_are_values(View<float> out) {
  SHARED_ARRAY(float, x, 4);
  SHARED_ARRAY(Pair, pairs, 2);
  SHARED_ARRAY(unsigned, bits, 1);
  x[0] = 2;
  x[1] = x[0];
  x[1] += 1.5f;
  x[2] = x[3] = x[0] * x[1] - x[0];
  x[2] -= 1;
  x[3] /= 2;
  x[3] *= x[0];
  const float exponential = exp(x[0]);
  bits[0] = 0;
  ++bits[0];
  bits[0]++;
  bits[0] |= 9u;
  bits[0] ^= 1u;
  bits[0] &= 10u;
  pairs[0] = {x[2], 3};
  pairs[1] = pairs[0];
  const Pair pair = pairs[1];
  out(0, 0) = max(x[0], x[1]);
  out(0, 1) = fmaxf(x[2], x[3]);
  out(0, 2) = threadIdx.x == 0 ? x[3] : x[0];
  out(0, 3) = exponential;
  out(0, 4) = pair.value + static_cast<float>(pair.index);
  out(0, 5) = static_cast<float>(bits[0]--);
  out(0, 6) = static_cast<float>(bits[0]);
}

TEST(SimtLanguage, SharedElementsBehaveLikeValues) {
  std::vector<float> out(7);
  emu::run_grid({"elements", {1}, {1}}, {}, [&] { elements_are_values(view_of(out)); });
  EXPECT_EQ(out, (std::vector<float>{3.5f, 5.0f, 5.0f, std::exp(2.0f), 7.0f, 10.0f, 9.0f}));
}

__global__ void counting_barriers(View<int> out) {
  const int odd = threadIdx.x % 2;
  out(0, threadIdx.x) = __syncthreads_count(odd);
  out(1, threadIdx.x) = __syncthreads_or(threadIdx.x == 37);
  out(2, threadIdx.x) = __syncthreads_or(threadIdx.x > 100);
  out(3, threadIdx.x) = __syncthreads_and(threadIdx.x != 37);
  out(4, threadIdx.x) = __syncthreads_and(threadIdx.x < 100);
}

TEST(SimtLanguage, BarriersThatCount) {
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(5 * 75);
    const auto view = view_of(out, 5, 75);
    emu::run_grid({"count", {2}, {75}}, {.order_seed = seed}, [&] { counting_barriers(view); });
    for (int t = 0; t < 75; ++t) {
      EXPECT_EQ(view(0, t), 37);
      EXPECT_EQ(view(1, t), 1);
      EXPECT_EQ(view(2, t), 0);
      EXPECT_EQ(view(3, t), 0);
      EXPECT_EQ(view(4, t), 1);
    }
  }
}

// ---- Warps -------------------------------------------------------------------------------------------------------

enum class Kind { index, up, down, exclusive_or };

/// The lane that is read, by CUDA's programming guide: a segment of `width` lanes is a warp of its own.
int lane_read(Kind kind, int lane, int argument, int width) {
  const int first = lane / width * width, in_segment = lane - first;
  switch (kind) {
    case Kind::index:
      return first + ((argument % width) + width) % width;
    case Kind::up:
      return in_segment < argument ? lane : lane - argument;
    case Kind::down:
      return in_segment + argument >= width ? lane : lane + argument;
    default:
      return (lane ^ argument) < first + width ? lane ^ argument : lane;
  }
}

template <typename T>
__global__ void shuffles(View<T> out, int argument, int width) {
  const T x = static_cast<T>(threadIdx.x) * 3 + 1;
  const unsigned distance = static_cast<unsigned>(argument);
  out(0, threadIdx.x) = __shfl_sync(kAllLanes, x, argument, width);
  out(1, threadIdx.x) = __shfl_up_sync(kAllLanes, x, distance, width);
  out(2, threadIdx.x) = __shfl_down_sync(kAllLanes, x, distance, width);
  out(3, threadIdx.x) = __shfl_xor_sync(kAllLanes, x, argument, width);
}

template <typename T>
void check_shuffles(std::uint64_t seed) {
  for (const int width : {1, 2, 4, 8, 16, 32}) {
    for (const int argument : {0, 1, 2, 3, 5, 8, 16, 17, 31}) {
      std::vector<T> out(4 * 64);
      const auto view = view_of(out, 4, 64);
      emu::run_grid({"shuffles", {1}, {64}}, {.order_seed = seed},
                    [&] { shuffles<T>(view, argument, width); });
      for (int kind = 0; kind < 4; ++kind) {
        for (int t = 0; t < 64; ++t) {
          const int from = t / 32 * 32 + lane_read(static_cast<Kind>(kind), t % 32, argument, width);
          ASSERT_EQ(view(kind, t), static_cast<T>(from * 3 + 1))
              << "shuffle " << kind << " of " << argument << ", width " << width << ", thread " << t;
        }
      }
    }
  }
}

TEST(SimtLanguage, ShufflesOfEveryTypeAndWidth) {
  for (const std::uint64_t seed : {order_seeds()[0], order_seeds()[1]}) {
    check_shuffles<int>(seed);
    check_shuffles<unsigned>(seed);
    check_shuffles<std::int64_t>(seed);
    check_shuffles<unsigned long long>(seed);
    check_shuffles<float>(seed);
    check_shuffles<double>(seed);
  }
}

/// Lanes part by a mask of their own and meet within it, a different number of times; the last warp has 13 lanes.
__global__ void parted_lanes(View<int> out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned lanes = threadIdx.x / kWarp == 2 ? (1u << 13) - 1 : kAllLanes;
  const unsigned multiples = 0x49249249u & lanes;  // of 3
  int x = 1;
  if (lane % 3 == 0) {
    x = static_cast<int>(__reduce_add_sync(multiples, threadIdx.x));
  } else {
    for (int i = 0; i < lane % 3; ++i) {
      const unsigned group = 0x49249249u << (lane % 3) & lanes;
      x += __popc(__ballot_sync(group, lane > 6));
      x += __shfl_sync(group, x, lane % 3);
    }
  }
  __syncwarp(lanes);
  out(0, threadIdx.x) = x;
  out(1, threadIdx.x) = static_cast<int>(__ballot_sync(lanes, x % 2));
  out(2, threadIdx.x) = static_cast<int>(__match_any_sync(lanes, lane % 5));
}

TEST(SimtLanguage, LanesPartAndMeetAgain) {
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(3 * 77);
    const auto view = view_of(out, 3, 77);
    emu::run_grid({"parted", {2}, {77}}, {.order_seed = seed}, [&] { parted_lanes(view); });
    for (int t = 0; t < 77; ++t) {
      const int first = t / 32 * 32, lanes = std::min(32, 77 - first), lane = t - first;
      int sum = 0, odd = 0, same = 0, above = 0;
      for (int other = 0; other < lanes; ++other) {
        if (other % 3 == 0) sum += first + other;
        if (other % 3 == lane % 3 && other > 6) ++above;
        if (view(0, first + other) % 2 != 0) odd |= 1 << other;
        if (other % 5 == lane % 5) same |= 1 << other;
      }
      int x = 1;
      if (lane % 3 == 0) x = sum;
      for (int i = 0; i < lane % 3; ++i) x = 2 * (x + above);
      EXPECT_EQ(view(0, t), x) << "thread " << t << ", order seed " << seed;
      EXPECT_EQ(view(1, t), odd);
      EXPECT_EQ(view(2, t), same);
    }
  }
}

__global__ void votes(View<int> out) {
  const int t = static_cast<int>(threadIdx.x);
  out(0, t) = __any_sync(kAllLanes, t == 40);
  out(1, t) = __all_sync(kAllLanes, t != 40);
  out(2, t) = __reduce_min_sync(kAllLanes, t - 40);
  out(3, t) = __reduce_max_sync(kAllLanes, t - 40);
  out(4, t) = static_cast<int>(__reduce_max_sync(kAllLanes, static_cast<unsigned>(t - 40)));
}

TEST(SimtLanguage, VotesAndReductions) {
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(5 * 64);
    const auto view = view_of(out, 5, 64);
    emu::run_grid({"votes", {1}, {64}}, {.order_seed = seed}, [&] { votes(view); });
    for (int t = 0; t < 64; ++t) {
      EXPECT_EQ(view(0, t), t >= 32);
      EXPECT_EQ(view(1, t), t < 32);
      EXPECT_EQ(view(2, t), t < 32 ? -40 : -8);
      EXPECT_EQ(view(3, t), t < 32 ? -9 : 23);
      EXPECT_EQ(view(4, t), t < 32 ? -9 : -1);
    }
  }
}

__global__ void pass_along_a_warp(View<int> out) {
  SHARED_ARRAY(int, slots, 64);
  const unsigned lane = threadIdx.x % kWarp, first = threadIdx.x - lane;
  slots[threadIdx.x] = static_cast<int>(threadIdx.x);
  for (int step = 0; step < 5; ++step) {
    __syncwarp();
    const int next = slots[first + (lane + 1) % kWarp];
    __syncwarp();
    slots[threadIdx.x] = next;
  }
  out(0, threadIdx.x) = slots[threadIdx.x];
}

TEST(SimtLanguage, AWarpSharesMemoryBySyncwarp) {
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<int> out(64);
    emu::run_grid({"pass", {1}, {64}}, {.order_seed = seed}, [&] { pass_along_a_warp(view_of(out)); });
    for (int t = 0; t < 64; ++t)
      EXPECT_EQ(out[static_cast<std::size_t>(t)], t / 32 * 32 + (t + 5) % 32);
  }
}

}  // namespace
}  // namespace shardcheck::gpu
