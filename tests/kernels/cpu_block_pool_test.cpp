// SPDX-License-Identifier: Apache-2.0
// Freed blocks come back for tensors of about their size, and never more than the limit is kept.
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/cpu/block_pool.hpp"
#include "kernels/cpu/cpu_device.hpp"

namespace shardcheck::cpu {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

TEST(BlockPool, GivesAFreedBlockToTheNextOfAboutItsSize) {
  BlockPool pool;
  const Block first = pool.take(4 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.bytes) % 64, 0u);
  std::byte* const bytes = first.bytes;
  pool.give(first);
  EXPECT_EQ(pool.kept(), kKeeps ? 4 * kMiB : 0);
  const Block small = pool.take(kMiB);  // would waste three quarters
  EXPECT_NE(small.bytes, kKeeps ? bytes : nullptr);
  const Block larger = pool.take(4 * kMiB + 1);
  EXPECT_GE(larger.size, 4 * kMiB + 1);
  const Block again = pool.take(4 * kMiB - 100);
  if (kKeeps) {
    EXPECT_EQ(again.bytes, bytes);
    EXPECT_EQ(again.size, 4 * kMiB);
  }
  EXPECT_EQ(pool.kept(), 0u);
  for (const Block& block : {small, larger, again}) pool.give(block);
}

TEST(BlockPool, KeepsTheLimitAndDropsTheOldest) {
  BlockPool pool(3 * kMiB);
  Block blocks[4];
  for (Block& block : blocks) block = pool.take(kMiB);
  for (const Block& block : blocks) pool.give(block);
  EXPECT_EQ(pool.kept(), kKeeps ? 3 * kMiB : 0);
  pool.give(pool.take(4 * kMiB));  // alone above the limit
  EXPECT_EQ(pool.kept(), kKeeps ? 3 * kMiB : 0);
  pool.give(pool.take(2 * kMiB));
  EXPECT_LE(pool.kept(), 3 * kMiB);
  pool.give(pool.take(100));
  EXPECT_LE(pool.kept(), 3 * kMiB);
}

TEST(BlockPool, NeverGivesABlockTwice) {
  BlockPool pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int round = 0; round < 200; ++round) {
        const Block block = pool.take(64 * 1024 + static_cast<std::size_t>(round % 7) * 1024);
        auto* const words = reinterpret_cast<std::uint32_t*>(block.bytes);
        const auto mark = static_cast<std::uint32_t>(t * 1000 + round);
        for (std::size_t i = 0; i < block.size / 4; i += 512) words[i] = mark;
        std::this_thread::yield();
        for (std::size_t i = 0; i < block.size / 4; i += 512) EXPECT_EQ(words[i], mark);
        pool.give(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BlockPool, MayOutliveItsDevice) {
  Tensor tensor;
  {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream();
    tensor = device->allocate(*stream, DType::f32, 512, 512);
  }
  tensor = {};
}

}  // namespace
}  // namespace shardcheck::cpu
