// SPDX-License-Identifier: Apache-2.0
// Faults that a kernel can have, each planted and each caught in every order of the threads, with a message that says
// where. Most run by luck on a GPU.
#include <gtest/gtest.h>

#include "tests/emu/simt_rig.hpp"

namespace shardcheck::gpu {
namespace {

constexpr unsigned kThreads = 128;

enum class Fault {
  none,
  no_barrier,
  no_second_barrier,
  divergent_barrier,
  early_return,
  index_off_by_one,
  unwritten_element,
  row_outside,
  col_outside,
  narrow_mask,
  missing_lane,
  two_operations,
  same_value
};

/// A block's sum of a row as a kernel would do it; a fault where `fault` says so.
__global__ void row_sum(View<const float> in, View<float> out, Fault fault) {
  SHARED_ARRAY(float, of_warps, kThreads / kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (fault == Fault::early_return && static_cast<std::int64_t>(threadIdx.x) >= in.cols) return;
  const std::int64_t cols = in.cols + (fault == Fault::col_outside ? 1 : 0);
  const std::int64_t row = blockIdx.x + (fault == Fault::row_outside ? 1 : 0);
  float x = 0;
  for (std::int64_t c = threadIdx.x; c < cols; c += blockDim.x) x += in(row, c);
  const unsigned mask = fault == Fault::narrow_mask ? 0x0000FFFFu : kAllLanes;
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (fault == Fault::missing_lane && offset == 2 && lane == 9) break;
    if (fault == Fault::two_operations && lane < offset) {
      x += __shfl_down_sync(mask, x, static_cast<unsigned>(offset));
    } else {
      x += __shfl_xor_sync(mask, x, offset);
    }
  }
  if (fault == Fault::same_value) {
    of_warps[warp] = x;  // by all lanes
  } else if (lane == 0 && !(fault == Fault::unwritten_element && warp == 1)) {
    of_warps[warp] = x;
  }
  if (fault == Fault::divergent_barrier) {
    if (warp == 2) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  } else if (fault != Fault::no_barrier) {
    __syncthreads();
  }
  float total = 0;
  for (int w = 0; w < warps; ++w) total += of_warps[w + (fault == Fault::index_off_by_one ? 1 : 0)];
  if (fault != Fault::no_second_barrier) __syncthreads();
  if (lane == 0) of_warps[warp] = total * x;  // scratch for another use
  __syncthreads();
  if (threadIdx.x == 0) out(blockIdx.x, 0) = total;
}

class RowSum : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 2, kCols = 100;

  RowSum() : in_(kRows * kCols), out_(kRows) {
    for (std::size_t i = 0; i < in_.size(); ++i) in_[i] = static_cast<float>(i % 7) - 2;
  }

  std::function<void()> kernel(Fault fault) {
    return [this, fault] {
      row_sum({in_.data(), kRows, kCols, kCols, 1}, view_of(out_, kRows, 1), fault);
    };
  }
  void expect_caught(Fault fault, const std::vector<std::string>& parts) {
    expect_fault({"row_sum", {kRows}, {kThreads}}, kernel(fault), parts);
  }

  std::vector<float> in_, out_;
};

TEST_F(RowSum, IsRightWithoutFault) {
  for (const std::uint64_t seed : order_seeds()) {
    emu::run_grid({"row_sum", {kRows}, {kThreads}}, {.order_seed = seed}, kernel(Fault::none));
    for (std::size_t row = 0; row < kRows; ++row) {
      float expected = 0;
      for (std::size_t c = 0; c < kCols; ++c) expected += in_[row * kCols + c];
      EXPECT_EQ(out_[row], expected);
    }
  }
}

TEST_F(RowSum, MissingBarrier) {
  expect_caught(Fault::no_barrier,
                {"kernel row_sum, block (", "shared array 'of_warps'", "element "});
  expect_caught(Fault::no_second_barrier,
                {"shared array 'of_warps'", "in the same barrier interval", "__syncthreads()"});
}

TEST_F(RowSum, TwoThreadsThatWriteTheSameValue) {
  expect_caught(Fault::same_value, {"shared array 'of_warps'", "is written here, which thread (",
                                    " writes in the same", " or a __syncwarp()"});
}

TEST_F(RowSum, DivergentBarrier) {
  expect_caught(Fault::divergent_barrier,
                {"__syncthreads() at simt_fault_test.cpp:", "the same barrier"});
}

TEST_F(RowSum, ReturnBeforeABarrier) {
  // Threads 100 to 127 leave; the fourth warp misses them in its first shuffle.
  expect_caught(Fault::early_return,
                {"thread (96, 0, 0): __shfl_xor_sync with mask 0xffffffff at simt_fault_test.cpp:",
                 "reached by 4 of 32 lanes; lane 4, thread (100, 0, 0), has ended"});
}

TEST_F(RowSum, IndexOutOfSharedMemory) {
  expect_caught(Fault::index_off_by_one,
                {"shared array 'of_warps': index 4 is outside of its 4 elements"});
}

TEST_F(RowSum, SharedElementThatNobodyWrote) {
  expect_caught(Fault::unwritten_element,
                {"shared array 'of_warps': element 1 is read, which no thread of this block"});
}

TEST_F(RowSum, IndexOutOfAView) {
  expect_caught(Fault::col_outside,
                {"thread (100, 0, 0): element (", ", 100) is outside of a view of 2 x 100"});
  expect_caught(Fault::row_outside,
                {"block (1, 0, 0)", "element (2, ", "is outside of a view of 2 x 100"});
}

TEST_F(RowSum, WrongLaneMask) {
  for (const std::uint64_t seed : order_seeds()) {
    const std::string error = error_of({"row_sum", {kRows}, {kThreads}}, {.order_seed = seed},
                                       kernel(Fault::narrow_mask));
    EXPECT_TRUE(error.find("isn't named by its own mask 0x0000ffff") != std::string::npos ||
                error.find("which mask 0x0000ffff doesn't name") != std::string::npos)
        << error;
  }
  expect_caught(Fault::missing_lane,
                {"__shfl_xor_sync with mask 0xffffffff", "is reached by 31 of 32 lanes; lane 9, "});
  expect_caught(Fault::two_operations, {"is reached by 16 of 32 lanes", "waits at __shfl_"});
}

// ---- Stale shared memory -----------------------------------------------------------------------------------------

__global__ void first_block_fills(View<int> out) {
  SHARED_ARRAY(int, table, 8);
  DYNAMIC_SHARED(int, more);
  if (blockIdx.x == 0 && threadIdx.x < 8) table[threadIdx.x] = more[threadIdx.x] = 1;
  __syncthreads();
  if (blockIdx.x == 1)
    out(0, threadIdx.x) = threadIdx.x < 8 ? table[threadIdx.x] : more[threadIdx.x - 8];
}

TEST(SimtFaults, WhatAnEarlierBlockOrLaunchLeftIsNotRead) {
  std::vector<int> out(16);
  expect_fault({"stale", {2}, {16}, 8 * sizeof(int)}, [&] { first_block_fills(view_of(out)); },
               {"block (1, 0, 0)", "is read, which no thread of this block has written"});
  expect_fault({"stale", {2}, {16}, 8 * sizeof(int)},
               [&] {
                 SHARED_ARRAY(int, other, 8);
                 if (threadIdx.x == 3) out[0] = other[3];
               },
               {"shared array 'other': element 3", "thread (3, 0, 0)"});
}

TEST(SimtFaults, FreshSharedMemoryIsNaN) {
  // The check aside: what is in memory that a kernel got past it, here by an atomic whose old value is returned.
  float was = 0;
  emu::run_grid({"fresh", {1}, {1}}, {}, [&] {
    SHARED_ARRAY(float, x, 2);
    was = atomicExch(&x[1], 1.0f);
  });
  EXPECT_TRUE(was != was);
}

// ---- Atomics -----------------------------------------------------------------------------------------------------

TEST(SimtFaults, AtomicsThatMeetPlainAccesses) {
  const emu::Grid grid{"atomics", {1}, {64}};
  const auto with_count = [&](const std::function<void(emu::SharedPointer<int>)>& use) {
    return [use] {
      SHARED_ARRAY(int, count, 1);
      if (threadIdx.x == 5) count[0] = 0;
      __syncthreads();
      use(count);
    };
  };
  expect_fault(grid, with_count([](auto count) { atomicAdd(&count[0], count[0]); }),
               {"shared array 'count'"});
  expect_fault(grid, with_count([](auto count) {
                 if (threadIdx.x == 40)
                   count[0] = 1;
                 else
                   atomicAdd(&count[0], 1);
               }),
               {"shared array 'count'", "atomically"});
  expect_fault(grid,
               [] {
                 SHARED_ARRAY(int, count, 1);
                 atomicAdd(&count[0], 1);
               },
               {"element 0 is read, which no thread"});
  expect_fault(grid,
               [] {
                 SHARED_ARRAY(int, count, 1);
                 if (threadIdx.x == 0) count[0] = 0;
                 atomicAdd(&count[0], 1);
               },
               {"shared array 'count': element 0 is"});
}

// ---- Barriers ----------------------------------------------------------------------------------------------------

TEST(SimtFaults, BarrierThatSomeThreadsMiss) {
  const emu::Grid grid{"miss", {1}, {32}};
  expect_fault(
      grid,
      [] {
        if (threadIdx.x < 7) __syncthreads();
      },
      {"kernel miss, block (0, 0, 0), thread (0, 0, 0): __syncthreads() at simt_fault_test.cpp:",
       "is reached by 7 of 32 threads; thread (7, 0, 0) has ended"});
  expect_fault(grid,
               [] {
                 if (threadIdx.x % 2 == 0) return;
                 if (threadIdx.x == 3) __syncwarp(0xAAAAAAAAu);
                 __syncthreads();
               },
               {"thread (3, 0, 0): __syncwarp with mask 0xaaaaaaaa",
                "1 of 16 lanes; lane 1, thread (1, 0, 0), waits at "
                "__syncthreads()"});
  expect_fault(grid, [] { threadIdx.x == 4 ? __syncthreads_or(1) : __syncthreads_and(1); },
               {"() at simt_fault_test.cpp:", "must come to the same barrier"});
}

// ---- Warps -------------------------------------------------------------------------------------------------------

TEST(SimtFaults, MasksThatDontFit) {
  const emu::Grid grid{"masks", {1}, {48}};
  expect_fault(grid, [] { __syncwarp(); },
               {"mask 0xffffffff names lane 16, but the block's last warp has 16 lanes"});
  expect_fault(grid, [] { __ballot_sync(threadIdx.x % 32 == 3 ? 0x0000FFFEu : 0x0000FFFFu, 1); },
               {"__ballot_sync"});
  expect_fault({"masks", {1}, {32}},
               [] { __ballot_sync(threadIdx.x == 3 ? 0xFFFFFFFEu : 0xFFFFFFFFu, 1); },
               {"__ballot_sync with mask 0xfffffff", "waits at __ballot_sync with mask 0xfffffff"});
  expect_fault(grid,
               [] {
                 if (threadIdx.x % 32 < 8) __shfl_down_sync(0xFFu, threadIdx.x, 4u);
               },
               {"__shfl_down_sync", "reads lane ", ", which mask 0x000000ff doesn't name"});
  expect_fault(grid,
               [] {
                 if (threadIdx.x % 32 < 8) __shfl_sync(0xFFu, 1.0f, 0, 12);
               },
               {"__shfl_sync: width 12 is not one of"});
  expect_fault({"masks", {1}, {32}},
               [] {
                 if (threadIdx.x < 16)
                   __shfl_xor_sync(0xFFFFFFFFu, 1, 1);
                 else
                   __shfl_xor_sync(0xFFFFFFFFu, 1.0, 1);  // another size
               },
               {"is reached by 16 of 32 lanes"});
}

TEST(SimtFaults, SharedMemoryOfAWarpWithoutSyncwarp) {
  const emu::Grid grid{"warp", {1}, {64}};
  // A shuffle makes lanes wait for each other, but orders no memory.
  expect_fault(grid,
               [] {
                 SHARED_ARRAY(int, x, 64);
                 x[threadIdx.x] = 1;
                 __shfl_xor_sync(kAllLanes, 1, 1);
                 const int other = x[threadIdx.x ^ 1u];
                 static_cast<void>(other);
               },
               {"is read here, which thread (", " or a __syncwarp()"});
  // Lanes 16 and up aren't named by the mask that lanes below meet with.
  expect_fault(grid,
               [] {
                 SHARED_ARRAY(int, x, 64);
                 x[threadIdx.x] = 1;
                 const unsigned half = threadIdx.x % 32 < 16 ? 0x0000FFFFu : 0xFFFF0000u;
                 __syncwarp(half);
                 const int other = x[threadIdx.x ^ 16u];
                 static_cast<void>(other);
               },
               {"shared array 'x'"});
  // Another warp needs a __syncthreads.
  expect_fault(grid,
               [] {
                 SHARED_ARRAY(int, x, 64);
                 x[threadIdx.x] = 1;
                 __syncwarp();
                 const int other = x[threadIdx.x ^ 32u];
                 static_cast<void>(other);
               },
               {"shared array 'x'"});
}

// ---- Limits ------------------------------------------------------------------------------------------------------

TEST(SimtFaults, LimitsOfALaunch) {
  const auto nothing = [] {};
  const auto refused = [&](const emu::Grid& grid, const std::string& part) {
    const std::string error = error_of(grid, {}, nothing);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  refused({"limits", {1}, {1025}},
          "kernel limits: grid (1, 1, 1) of blocks (1025, 1, 1) can't be launched");
  refused({"limits", {1}, {2, 2, 65}}, "64 of them along z");
  refused({"limits", {1}, {32, 33}}, "at most 1024 threads");
  refused({"limits", {1}, {0}}, "an extent is 0");
  refused({"limits", {1, 65536}, {1}}, "65535");
  refused({"limits", {1}, {1}, 48 * 1024 + 1},
          "49153 bytes of dynamic shared memory, the limit is 49152");
  const auto ask = [] {
    SHARED_ARRAY(double, x, 1024);
    x[1023] = 1;
  };
  EXPECT_EQ(error_of({"limits", {1}, {1}, 40 * 1024}, {}, ask), "");
  EXPECT_NE(error_of({"limits", {1}, {1}, 40 * 1024 + 1}, {}, ask)
                .find("'x' brings the block's shared memory to 49153"),
            std::string::npos);
  EXPECT_EQ(error_of({"limits", {1}, {1}, 100 * 1024}, {.shared_limit = 227 * 1024}, ask), "");
  const auto too_much = [] {
    SHARED_ARRAY(double, x, 6145);
    x[0] = 1;
  };
  EXPECT_NE(
      error_of({"limits", {1}, {1}}, {.shared_limit = 227 * 1024}, too_much).find("at most 49152"),
      std::string::npos);
}

TEST(SimtFaults, DynamicSharedMemoryIsOneArrayOfTheLaunchsSize) {
  expect_fault({"dynamic", {1}, {32}, 100},
               [] {
                 DYNAMIC_SHARED(double, x);
                 if (threadIdx.x < 13) x[threadIdx.x] = 1;
               },
               {"shared array 'x': index 12 is outside of its 12 elements"});
  expect_fault(
      {"dynamic", {1}, {32}, 100},
      [] {
        DYNAMIC_SHARED(double, x);
        DYNAMIC_SHARED(float, y);
        x[0] = y[0] = 1;
      },
      {"dynamic shared memory is taken as 'x' with elements of 8 bytes and as 'y' with 4"});
}

#if !defined(__SANITIZE_THREAD__)  // its runtime takes more of the stack than what is watched
__attribute__((noinline)) int fill_stack(int depth) {
  volatile char local[32];
  for (volatile char& byte : local) byte = 1;
  return depth == 0 ? 0 : fill_stack(depth - 1) + local[depth % 32];
}

TEST(SimtFaults, LocalVariablesThatOverrunTheStack) {
  const emu::Grid grid{"stack", {1}, {1}};
  std::string error;
  int depth = 0;  // small steps: no frame is larger than what is watched
  while (error.empty() && depth < 100'000) {
    ++depth;
    error = error_of(grid, {}, [&] { fill_stack(depth); });
  }
  EXPECT_NE(error.find("kernel stack, block (0, 0, 0), thread (0, 0, 0): the thread's local "
                       "variables need more"),
            std::string::npos);
  EXPECT_GT(depth, 300);
  EXPECT_EQ(error_of(grid, {}, [&] { fill_stack(depth / 2); }), "");  // the stack is usable again
}
#endif

}  // namespace
}  // namespace shardcheck::gpu
