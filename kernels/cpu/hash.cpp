// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/memory.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: odd, bits well spread

constexpr std::uint64_t kOther = 0xd1342543de82ef95u;

/// A bijection of the state for a fixed word and of the word for a fixed state, so a changed bit never gets lost. The
/// second product spreads what the first left in the upper bits: a later word with one bit changed can't undo it.
std::uint64_t mix(std::uint64_t state, std::uint64_t word) {
  return std::rotl((state ^ word) * kOdd, 32) * kOther;
}

/// Spreads every bit over all others; a bijection too.
std::uint64_t finish(std::uint64_t h) {
  h = (h ^ (h >> 32)) * kOdd;
  h = (h ^ (h >> 29)) * kOdd;
  return h ^ (h >> 32);
}

/// `bytes` in eight independent lanes of words (one lane would wait for its own product), folded at the end.
std::uint64_t hash_bytes(std::uint64_t seed, const std::byte* bytes, std::size_t size) {
  constexpr std::size_t kStripe = 64;
  std::array<std::uint64_t, kStripe / 8> lanes, words;
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = seed + (lane + 1) * kOdd;
  std::size_t done = 0;
  for (; done + kStripe <= size; done += kStripe) {
    std::memcpy(words.data(), bytes + done, kStripe);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  if (done < size) {
    words.fill(0);
    std::memcpy(words.data(), bytes + done, size - done);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  std::uint64_t h = seed;
  for (const std::uint64_t lane : lanes) h = mix(h, finish(lane));
  return finish(h);
}

}  // namespace

std::uint64_t hash(const Tensor& tensor) {
  std::uint64_t h = mix(static_cast<std::uint64_t>(tensor.dtype), static_cast<std::uint64_t>(tensor.rows));
  h = mix(h, static_cast<std::uint64_t>(tensor.cols));
  if (tensor.elements() == 0) return finish(h);
  const std::size_t element = element_size(tensor.dtype);
  const std::size_t row_bytes = element * static_cast<std::size_t>(tensor.cols);
  Scratch<std::byte> gathered(tensor.col_stride == 1 ? 0 : static_cast<std::int64_t>(row_bytes));
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    const std::byte* bytes = address(tensor, row, 0);
    if (tensor.col_stride != 1) {
      for (std::int64_t col = 0; col < tensor.cols; ++col) {
        std::memcpy(gathered.data() + static_cast<std::size_t>(col) * element, address(tensor, row, col), element);
      }
      bytes = gathered.data();
    }
    h = mix(h, hash_bytes(static_cast<std::uint64_t>(row), bytes, row_bytes));
  }
  return finish(h);
}

}  // namespace shardcheck::cpu
