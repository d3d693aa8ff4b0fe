// SPDX-License-Identifier: Apache-2.0
#include "model/philox.hpp"

#include <algorithm>
#include <cstddef>

namespace shardcheck {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;
constexpr int kRounds = 10;
constexpr std::int32_t kCentre = 2 * 65535;

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

std::int32_t quarters(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>((a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16)) - kCentre;
}

/// Counters are computed side by side, so that the loops over lanes become vector instructions (up to 16 lanes g++ 12
/// unrolls the loops instead, which is half as fast).
constexpr std::size_t kLanes = 64;

struct Lanes {
  alignas(64) std::uint32_t word[4][kLanes];
};

void philox_lanes(Lanes& lanes, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const std::uint64_t p0 = std::uint64_t{kMultiplier0} * lanes.word[0][i];
      const std::uint64_t p1 = std::uint64_t{kMultiplier1} * lanes.word[2][i];
      lanes.word[0][i] = high(p1) ^ lanes.word[1][i] ^ key[0];
      lanes.word[1][i] = low(p1);
      lanes.word[2][i] = high(p0) ^ lanes.word[3][i] ^ key[1];
      lanes.word[3][i] = low(p0);
    }
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t p1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(p1) ^ counter[1] ^ key[0], low(p1), high(p0) ^ counter[3] ^ key[1], low(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view name) : seed_(seed) {
  const std::uint64_t hash = fnv1a(name);
  key_ = {low(hash), high(hash)};
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const std::uint64_t block = index / 2;
  const auto words = philox4x32({low(block), high(block), low(seed_), high(seed_)}, key_);
  const std::size_t half = (index % 2) * 2;
  return words[half] | std::uint64_t{words[half + 1]} << 32;
}

std::int32_t RandomStream::sum(std::uint64_t index) const {
  const std::uint64_t x = bits(index);
  return quarters(low(x), high(x));
}

void RandomStream::fill_sums(std::uint64_t first, std::span<std::int32_t> out) const {
  std::size_t done = 0;
  if (first % 2 != 0 && !out.empty()) out[done++] = sum(first);
  while (out.size() - done >= 2 * kLanes) {
    const std::uint64_t block = (first + done) / 2;
    Lanes lanes;
    for (std::size_t i = 0; i < kLanes; ++i) {
      lanes.word[0][i] = low(block + i);
      lanes.word[1][i] = high(block + i);
      lanes.word[2][i] = low(seed_);
      lanes.word[3][i] = high(seed_);
    }
    philox_lanes(lanes, key_);
    std::int32_t* to = out.data() + done;
    for (std::size_t i = 0; i < kLanes; ++i) {
      to[2 * i] = quarters(lanes.word[0][i], lanes.word[1][i]);
      to[2 * i + 1] = quarters(lanes.word[2][i], lanes.word[3][i]);
    }
    done += 2 * kLanes;
  }
  for (; done < out.size(); ++done) out[done] = sum(first + done);
}

double normal(std::uint64_t seed, std::string_view name, std::uint64_t index) {
  return double{kNormalUnit} * RandomStream(seed, name).sum(index);
}

void fill_normal(std::uint64_t seed, std::string_view name, std::uint64_t first, std::span<double> out) {
  constexpr std::size_t kChunk = 1024;
  std::array<std::int32_t, kChunk> sums;
  const RandomStream stream(seed, name);
  for (std::size_t done = 0; done < out.size(); done += kChunk) {
    const std::size_t count = std::min(kChunk, out.size() - done);
    stream.fill_sums(first + done, std::span(sums).first(count));
    for (std::size_t i = 0; i < count; ++i) out[done + i] = double{kNormalUnit} * sums[i];
  }
}

}  // namespace shardcheck
