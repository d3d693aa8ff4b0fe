// SPDX-License-Identifier: Apache-2.0
// Atomics and arithmetic of the kernel language on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>

#include "tests/emu/simt_rig.hpp"

namespace shardcheck::gpu {
namespace {

__global__ void histogram(View<const int> in, View<unsigned> counts, View<int> least,
                          View<int> greatest, View<unsigned long long> bits, View<float> sum) {
  SHARED_ARRAY(unsigned, of_block, 10);
  SHARED_ARRAY(int, last, 1);
  if (threadIdx.x < 10) of_block[threadIdx.x] = 0;
  __syncthreads();
  const int x = in(0, blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&of_block[x], 1u);
  atomicExch(&last[0], x);
  __syncthreads();
  if (threadIdx.x < 10) atomicAdd(&counts(0, threadIdx.x), of_block[threadIdx.x]);
  atomicMin(&least(0, 0), x - last[0] % 1);
  atomicMax(&greatest(0, 0), x);
  atomicOr(&bits(0, 0), 1ull << (x + 40));
  float seen = sum(0, 0);
  for (;;) {  // as one writes it with atomicCAS
    const unsigned old = atomicCAS(reinterpret_cast<unsigned*>(&sum(0, 0)), __float_as_uint(seen),
                                   __float_as_uint(seen + static_cast<float>(x)));
    if (old == __float_as_uint(seen)) break;
    seen = __uint_as_float(old);
  }
}

TEST(SimtArithmetic, AtomicsOnSharedAndGlobalMemory) {
  std::vector<int> in(4 * 96);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int>(i * i % 7 + i % 3);
  std::vector<unsigned> expected(10);
  for (const int x : in) ++expected[static_cast<std::size_t>(x)];
  const View<const int> view{in.data(), 1, 4 * 96, 4 * 96, 1};
  for (const std::uint64_t seed : order_seeds()) {
    std::vector<unsigned> counts(10);
    std::vector<int> least = {99}, greatest = {-99};
    std::vector<unsigned long long> bits = {1};
    std::vector<float> sum = {0};
    emu::run_grid({"histogram", {4}, {96}}, {.order_seed = seed}, [&] {
      histogram(view, view_of(counts), view_of(least), view_of(greatest), view_of(bits), view_of(sum));
    });
    EXPECT_EQ(counts, expected);
    EXPECT_EQ(least[0], *std::min_element(in.begin(), in.end()));
    EXPECT_EQ(greatest[0], *std::max_element(in.begin(), in.end()));
    EXPECT_EQ(sum[0], static_cast<float>(std::accumulate(in.begin(), in.end(), 0)));
    unsigned long long all = 1;
    for (const int x : in) all |= 1ull << (x + 40);
    EXPECT_EQ(bits[0], all);
  }
}

TEST(SimtArithmetic, AtomicSumsWrapAround) {
  std::vector<int> value = {std::numeric_limits<int>::max()};
  emu::run_grid({"wrap", {1}, {3}}, {}, [&] { atomicAdd(&view_of(value)(0, 0), 1); });
  EXPECT_EQ(value[0], std::numeric_limits<int>::min() + 2);
}

TEST(SimtArithmetic, ArithmeticHasCudasOverloads) {
  static_assert(std::is_same_v<decltype(exp(1.0f)), float> &&
                std::is_same_v<decltype(exp(1.0)), double>);
  static_assert(std::is_same_v<decltype(sqrt(1.0f)), float> &&
                std::is_same_v<decltype(rsqrt(1.0)), double>);
  static_assert(std::is_same_v<decltype(min(1.0f, 2.0f)), float> &&
                std::is_same_v<decltype(max(1, 2)), int>);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(max(nan, 2.0f), 2.0f);  // as fmaxf
  EXPECT_EQ(min(2.0f, nan), 2.0f);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(24), 4);
  EXPECT_EQ(__ffsll(1ll << 40), 41);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__popc(0xF0F0u), 8);
  EXPECT_EQ(__umulhi(0xFFFFFFFFu, 0xFFFFFFFFu), 0xFFFFFFFEu);
  EXPECT_EQ(rsqrtf(4.0f), 0.5f);
  EXPECT_EQ(__int_as_float(__float_as_int(-1.5f)), -1.5f);
}

}  // namespace
}  // namespace shardcheck::gpu
