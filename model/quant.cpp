// SPDX-License-Identifier: Apache-2.0
// Layouts: ggml-common.h of https://github.com/ggml-org/ggml. All numbers are little-endian.
#include "model/quant.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model/float_bits.hpp"

namespace shardcheck {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float half(const std::byte* from) { return f16_to_f32(load<std::uint16_t>(from)); }
int low4(std::byte b) { return static_cast<int>(b) & 15; }
int high4(std::byte b) { return static_cast<int>(b) >> 4; }

/// f16 scale, 32 int8.
void decode_q8_0(const std::byte* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 32; ++i)
    out[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

/// f16 scale, 16 bytes: low nibbles are elements 0 to 15, high ones 16 to 31; centred on 8.
void decode_q4_0(const std::byte* block, float* out) {
  const float d = half(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low4(block[2 + i]) - 8);
    out[i + 16] = d * static_cast<float>(high4(block[2 + i]) - 8);
  }
}

/// f16 scale, f16 minimum, 16 bytes as in q4_0, not centred.
void decode_q4_1(const std::byte* block, float* out) {
  const float d = half(block);
  const float m = half(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(low4(block[4 + i])) + m;
    out[i + 16] = d * static_cast<float>(high4(block[4 + i])) + m;
  }
}

struct ScaleMin {
  int scale, min;
};

/// Eight 6-bit scales and minima in 12 bytes: the first four of each whole in 6 bits, the last four as nibbles whose
/// upper two bits are the spare bits of the first eight bytes.
ScaleMin unpack_q4_k(const std::byte* packed, int j) {
  const auto at = [&](int i) { return static_cast<int>(packed[i]); };
  if (j < 4) return {at(j) & 63, at(j + 4) & 63};
  return {(at(j + 4) & 15) | ((at(j - 4) >> 6) << 4), (at(j + 4) >> 4) | ((at(j) >> 6) << 4)};
}

/// f16 scale of scales, f16 scale of minima, 12 bytes of both, 128 bytes: each 32 bytes hold two groups of 32.
void decode_q4_k(const std::byte* block, float* out) {
  const float d = half(block);
  const float d_min = half(block + 2);
  const std::byte* packed = block + 4;
  const std::byte* nibbles = block + 16;
  for (int pair = 0; pair < 4; ++pair) {
    const ScaleMin a = unpack_q4_k(packed, 2 * pair);
    const ScaleMin b = unpack_q4_k(packed, 2 * pair + 1);
    const float d_a = d * static_cast<float>(a.scale), m_a = d_min * static_cast<float>(a.min);
    const float d_b = d * static_cast<float>(b.scale), m_b = d_min * static_cast<float>(b.min);
    for (int i = 0; i < 32; ++i) {
      const std::byte byte = nibbles[32 * pair + i];
      out[64 * pair + i] = d_a * static_cast<float>(low4(byte)) - m_a;
      out[64 * pair + 32 + i] = d_b * static_cast<float>(high4(byte)) - m_b;
    }
  }
}

/// 128 bytes of low nibbles, 64 bytes of upper 2-bit parts, 16 int8 scales (one per 16 elements), f16 scale.
void decode_q6_k(const std::byte* block, float* out) {
  const float d = half(block + 208);
  for (int part = 0; part < 2; ++part) {
    const std::byte* low = block + 64 * part;
    const std::byte* high = block + 128 + 32 * part;
    const std::byte* scales = block + 192 + 8 * part;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const std::byte byte = low[i + 32 * (quarter % 2)];
        const int nibble = quarter < 2 ? low4(byte) : high4(byte);
        const int upper = (static_cast<int>(high[i]) >> (2 * quarter)) & 3;
        const float scale = d * static_cast<float>(
                                    static_cast<std::int8_t>(scales[2 * quarter + i / 16]));
        out[128 * part + 32 * quarter + i] = scale * static_cast<float>((nibble | (upper << 4)) - 32);
      }
    }
  }
}

void decode_block(DType dtype, const std::byte* block, float* out) {
  switch (dtype) {
    case DType::q8_0:
      return decode_q8_0(block, out);
    case DType::q4_0:
      return decode_q4_0(block, out);
    case DType::q4_1:
      return decode_q4_1(block, out);
    case DType::q4_k:
      return decode_q4_k(block, out);
    case DType::q6_k:
      return decode_q6_k(block, out);
    case DType::f64:
      *out = static_cast<float>(load<double>(block));
      return;
    case DType::f32:
      *out = load<float>(block);
      return;
    case DType::f16:
      *out = half(block);
      return;
    case DType::bf16:
      *out = bf16_to_f32(load<std::uint16_t>(block));
      return;
    default:
      throw std::logic_error("a dtype that isn't dequantised");
  }
}

}  // namespace

void dequantize(DType dtype, std::span<const std::byte> blocks, std::int64_t first,
                std::span<float> out) {
  constexpr std::int64_t kLargestBlock = 256;
  const DTypeInfo& facts = info(dtype);
  const std::int64_t per_block = facts.block_elements;
  const std::int64_t last = first + static_cast<std::int64_t>(out.size());
  float whole[kLargestBlock];
  for (std::int64_t at = first; at < last;) {
    const std::int64_t index = at / per_block;
    const std::int64_t skipped = at % per_block;
    const std::int64_t count = std::min(per_block - skipped, last - at);
    const std::byte* block = blocks.data() + static_cast<std::size_t>(index) * facts.block_bytes;
    float* to = out.data() + (at - first);
    if (count == per_block) {
      decode_block(dtype, block, to);
    } else {
      decode_block(dtype, block, whole);
      std::copy_n(whole + skipped, count, to);
    }
    at += count;
  }
}

}  // namespace shardcheck
