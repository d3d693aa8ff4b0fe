// SPDX-License-Identifier: Apache-2.0
#include "model/quant.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/float_bits.hpp"
#include "model/philox.hpp"

namespace shardcheck {
namespace {

/// The slow twin: element i of one block by its formula, exact in f64 and rounded once to f32. (Each format's products
/// fit f32's 24 bits but for q6_k's last one and the sums, so this is what ggml's f32 arithmetic gives.)
class NaiveBlock {
 public:
  NaiveBlock(DType dtype, const unsigned char* bytes) : dtype_(dtype), b_(bytes) {}

  float element(int i) const {
    switch (dtype_) {
      case DType::q8_0:
        return static_cast<float>(half(0) * int8(2 + i));
      case DType::q4_0:
        return static_cast<float>(half(0) * (nibble(2, i) - 8));
      case DType::q4_1:
        return static_cast<float>(half(0) * nibble(4, i) + half(2));
      case DType::q4_k:
        return q4_k(i);
      case DType::q6_k:
        return q6_k(i);
      default:
        return 0.0f;
    }
  }

 private:
  double half(int at) const {
    return f16_to_f32(static_cast<std::uint16_t>(b_[at] | (b_[at + 1] << 8)));
  }
  int int8(int at) const { return b_[at] < 128 ? b_[at] : b_[at] - 256; }
  int bits(int first_bit, int count) const {  // of the 12 packed bytes of q4_k
    int value = 0;
    for (int i = 0; i < count; ++i)
      value |= ((b_[4 + (first_bit + i) / 8] >> ((first_bit + i) % 8)) & 1) << i;
    return value;
  }
  int nibble(int at, int i) const { return i < 16 ? b_[at + i] % 16 : b_[at + i - 16] / 16; }

  float q4_k(int i) const {
    const int group = i / 32;
    // Groups 0 to 3: bits 0 to 5 of bytes 0 to 3 (scale) and 4 to 7 (minimum). Groups 4 to 7: nibbles of bytes 8 to 11
    // below the top two bits of bytes 0 to 3 (scale) and 4 to 7 (minimum).
    const int g = group % 4;
    const int scale = group < 4 ? bits(8 * g, 6) : bits(64 + 8 * g, 4) + 16 * bits(8 * g + 6, 2);
    const int minimum = group < 4 ? bits(32 + 8 * g, 6)
                                  : bits(64 + 8 * g + 4, 4) + 16 * bits(32 + 8 * g + 6, 2);
    const int byte = b_[16 + 32 * (group / 2) + i % 32];
    const int quant = group % 2 == 0 ? byte % 16 : byte / 16;
    return static_cast<float>(half(0) * scale * quant - half(2) * minimum);
  }

  float q6_k(int i) const {
    const int part = i / 128, quarter = (i % 128) / 32, lane = i % 32;
    const int byte = b_[64 * part + lane + (quarter % 2 == 1 ? 32 : 0)];
    const int low = quarter / 2 == 0 ? byte % 16 : byte / 16;
    const int high = (b_[128 + 32 * part + lane] >> (2 * quarter)) % 4;
    return static_cast<float>(half(208) * int8(192 + i / 16) * (low + 16 * high - 32));
  }

  DType dtype_;
  const unsigned char* b_;
};

/// Random blocks; the f16 scales get exponents around 1, so that no element overflows.
std::vector<unsigned char> random_blocks(DType dtype, std::size_t count) {
  const std::size_t bytes = info(dtype).block_bytes;
  std::vector<unsigned char> blocks(count * bytes);
  const RandomStream stream(5, name(dtype));
  for (std::size_t i = 0; i < blocks.size(); ++i)
    blocks[i] = static_cast<unsigned char>(stream.bits(i));
  for (std::size_t i = 0; i < count; ++i) {
    unsigned char* block = blocks.data() + i * bytes;
    const std::size_t first = dtype == DType::q6_k ? 208 : 0;
    for (const std::size_t at :
         {first, first + (dtype == DType::q4_1 || dtype == DType::q4_k ? 2u : 0u)}) {
      block[at + 1] = static_cast<unsigned char>((block[at + 1] & 0x87) | 0x30);
    }
  }
  return blocks;
}

class Quant : public testing::TestWithParam<DType> {};

TEST_P(Quant, EqualsTheSlowTwinBitForBit) {
  constexpr std::size_t kBlocks = 200;
  const std::vector<unsigned char> blocks = random_blocks(GetParam(), kBlocks);
  const auto per_block = static_cast<std::size_t>(info(GetParam()).block_elements);
  std::vector<float> values(kBlocks * per_block);
  dequantize(GetParam(), std::as_bytes(std::span(blocks)), 0, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const NaiveBlock block(GetParam(), blocks.data() + i / per_block * info(GetParam()).block_bytes);
    ASSERT_EQ(values[i], block.element(static_cast<int>(i % per_block))) << i;
  }
}

TEST_P(Quant, AnyRangeIsTheSliceOfTheWhole) {
  constexpr std::size_t kBlocks = 3;
  const std::vector<unsigned char> blocks = random_blocks(GetParam(), kBlocks);
  const std::size_t total = kBlocks * static_cast<std::size_t>(info(GetParam()).block_elements);
  std::vector<float> whole(total);
  dequantize(GetParam(), std::as_bytes(std::span(blocks)), 0, whole);
  for (std::size_t first = 0; first < total; first += 7) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{33}, total - first}) {
      if (first + count > total) continue;
      std::vector<float> part(count);
      dequantize(GetParam(), std::as_bytes(std::span(blocks)), static_cast<std::int64_t>(first), part);
      EXPECT_TRUE(
          std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Quant,
                         testing::Values(DType::q8_0, DType::q4_0, DType::q4_1, DType::q4_k, DType::q6_k),
                         [](const auto& suite) { return std::string(name(suite.param)); });

}  // namespace
}  // namespace shardcheck
