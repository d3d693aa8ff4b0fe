// SPDX-License-Identifier: Apache-2.0
// What runs a grid: it recovers from errors, is refused outside of kernels, and every host thread has its own.
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/emu/simt_rig.hpp"

namespace shardcheck::gpu {
namespace {

TEST(SimtRunner, AnErrorUnwindsAllThreads) {
  for (const std::uint64_t seed : order_seeds()) {
    const auto alive = std::make_shared<int>(0);
    const emu::Grid grid{"unwind", {3}, {100}};
    const auto body = [&] {
      const auto held = alive;
      const std::vector<int> memory(100, static_cast<int>(threadIdx.x));
      __syncthreads();
      if (blockIdx.x == 1 && threadIdx.x == 50) throw std::runtime_error("planted");
      __syncwarp(threadIdx.x < 96 ? kAllLanes : 0xFu);
      __syncthreads();
      if (memory[99] != static_cast<int>(threadIdx.x)) throw std::logic_error("stacks mixed up");
    };
    EXPECT_THROW(emu::run_grid(grid, {.order_seed = seed}, body), std::runtime_error);
    EXPECT_EQ(alive.use_count(), 1);
    EXPECT_NE(error_of(grid, {.order_seed = seed},
                       [&] {
                         const auto held = alive;
                         if (threadIdx.x != 17) __syncthreads();
                       })
                  .find("reached by 99 of 100"),
              std::string::npos);
    EXPECT_EQ(alive.use_count(), 1);
    int ran = 0;
    emu::run_grid(grid, {.order_seed = seed}, [&] {
      __syncthreads();
      ++ran;
    });
    EXPECT_EQ(ran, 300);
  }
}

TEST(SimtRunner, OutsideOfAKernel) {
  EXPECT_THROW(__syncthreads(), DeviceError);
  EXPECT_THROW(__syncwarp(), DeviceError);
  EXPECT_THROW(emu::check_index(0, 0, 0, 1), DeviceError);
  const emu::Grid grid{"outer", {1}, {1}};
  EXPECT_NE(
      error_of(grid, {}, [&] { emu::run_grid(grid, {}, [] {}); }).find("a kernel can't launch kernels"),
      std::string::npos);
}

TEST(SimtRunner, HostThreadsRunTheirOwnGrids) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t host = 0; host < wrong.size(); ++host) {
    threads.emplace_back([&wrong, host] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const emu::Grid grid{"host", {2}, {static_cast<unsigned>(33 + 7 * host)}};
        const std::uint64_t seed = host * 100 + static_cast<std::uint64_t>(repeat);
        int sum = 0;
        const std::string error = error_of(grid, {.order_seed = seed}, [&] {
          SHARED_ARRAY(int, x, 64);
          x[threadIdx.x] = static_cast<int>(threadIdx.x);
          __syncthreads();
          sum += x[blockDim.x - 1 - threadIdx.x];
          if (repeat % 2 == 1 && threadIdx.x == host) x[64] = 1;
          __syncthreads();
        });
        const int n = static_cast<int>(grid.block.x);
        const bool right = repeat % 2 == 1 ? error.find("index 64") != std::string::npos
                                           : sum == n * (n - 1);
        wrong[host] += right ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace shardcheck::gpu
