// SPDX-License-Identifier: Apache-2.0
#include "model/philox.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace shardcheck {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known answers: file kat_vectors of the Random123 library, philox4x32 with 10 rounds.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr std::uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

/// The slow twin of RandomStream::sum, from the description in philox.hpp alone.
int sum_naive(std::uint64_t seed, std::string_view name, std::uint64_t index) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ULL;
  }
  const std::uint64_t block = index / 2;
  const Words words = philox4x32(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
      {static_cast<std::uint32_t>(hash), static_cast<std::uint32_t>(hash >> 32)});
  int total = -2 * 65535;
  for (std::size_t half = 0; half < 2; ++half) {
    const std::uint32_t word = words[2 * (index % 2) + half];
    total += static_cast<int>(word % 65536u) + static_cast<int>(word / 65536u);
  }
  return total;
}

TEST(RandomStream, FastFormEqualsTheSlowTwin) {
  const std::uint64_t seed = 0x123456789abcdef0ULL;
  const RandomStream stream(seed, "layers.3.mlp.down_proj.weight");
  // First indices on both sides of a block's border, of a lane group's and of 2^32 blocks.
  for (const std::uint64_t first :
       {0ULL, 1ULL, 127ULL, 128ULL, 129ULL, (1ULL << 33) - 100, (1ULL << 40) + 7}) {
    for (const std::size_t count : {0u, 1u, 2u, 127u, 128u, 129u, 300u, 1025u}) {
      std::vector<std::int32_t> sums(count);
      stream.fill_sums(first, sums);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(sums[i], sum_naive(seed, "layers.3.mlp.down_proj.weight", first + i))
            << first << " + " << i;
        ASSERT_EQ(sums[i], stream.sum(first + i));
      }
    }
  }
}

TEST(RandomStream, AShardIsTheSliceOfTheWhole) {
  std::vector<double> whole(5000);
  fill_normal(7, "wte.weight", 0, whole);
  for (const std::size_t begin : {0u, 1u, 999u, 1024u, 4999u}) {
    for (const std::size_t count : {1u, 2u, 700u}) {
      if (begin + count > whole.size()) continue;
      std::vector<double> part(count);
      fill_normal(7, "wte.weight", begin, part);
      EXPECT_TRUE(
          std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin)));
      EXPECT_EQ(part[0], normal(7, "wte.weight", begin));
    }
  }
}

TEST(RandomStream, DependsOnSeedNameAndIndex) {
  const auto first = [](std::uint64_t seed, std::string_view name) {
    return RandomStream(seed, name).bits(0);
  };
  const std::set<std::uint64_t> all = {first(1, "a"),
                                       first(2, "a"),
                                       first(1, "b"),
                                       first(1, "ab"),
                                       first(1, "ba"),
                                       first(1ULL << 32, "a"),
                                       RandomStream(1, "a").bits(1)};
  EXPECT_EQ(all.size(), 7u);
}

TEST(RandomStream, NormalsHaveMeanZeroAndVarianceOne) {
  constexpr std::size_t kCount = 1 << 18;
  std::vector<double> values(kCount);
  fill_normal(3, "x", 0, values);
  double sum = 0.0, squares = 0.0, fourth = 0.0;
  for (const double x : values) {
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    EXPECT_LE(std::fabs(x), 2 * 65535 * double{kNormalUnit});
    // 18 + 24 bits: exact in f64, so dividing by the unit gives the integer back.
    EXPECT_EQ(x / double{kNormalUnit}, std::nearbyint(x / double{kNormalUnit}));
  }
  // Six standard errors. Of four uniforms the kurtosis is 3 - 1.2 / 4 = 2.7, the eighth moment below 105.
  const double n = kCount;
  EXPECT_LE(std::fabs(sum / n), 6.0 / std::sqrt(n));
  EXPECT_LE(std::fabs(squares / n - 1.0), 6.0 * std::sqrt((2.7 - 1.0) / n));
  EXPECT_LE(std::fabs(fourth / n - 2.7), 6.0 * std::sqrt(105.0 / n));
}

}  // namespace
}  // namespace shardcheck
