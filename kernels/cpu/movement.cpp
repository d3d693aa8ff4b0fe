// SPDX-License-Identifier: Apache-2.0
// Primitives that move bytes and compute nothing: copy, embedding, poison.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

/// Calls body(T{}) with an unsigned integer as wide as one element.
template <typename Body>
void with_word(DType dtype, Body&& body) {
  switch (element_size(dtype)) {
    case 2: return body(std::uint16_t{});
    case 4: return body(std::uint32_t{});
    default: return body(std::uint64_t{});
  }
}

template <typename Word>
void copy_row(const Word* in, std::int64_t in_stride, Word* out, std::int64_t out_stride, std::int64_t n) {
  if (in_stride == 1 && out_stride == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(n) * sizeof(Word));
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * out_stride] = in[i * in_stride];
  }
}

std::uint64_t poison_bits(DType dtype) {
  switch (dtype) {
    case DType::f64: return 0x7ff8000000000000u;
    case DType::f32: return 0x7fc00000u;
    case DType::bf16: return 0x7fc0u;
    case DType::f16: return 0x7e00u;
    case DType::i64: return static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    default: return std::numeric_limits<std::uint64_t>::max();
  }
}

/// Row of the local table that holds `id`, or -1.
std::int64_t local_row(std::int64_t id, OwnedRanges owned) {
  std::int64_t rows_before = 0;
  for (const auto& [begin, end] : owned) {
    if (id >= begin && id < end) return rows_before + id - begin;
    rows_before += end - begin;
  }
  return -1;
}

}  // namespace

void copy(const Tensor& in, const Tensor& out) {
  with_word(in.dtype, [&](auto word) {
    using Word = decltype(word);
    if (in.contiguous() && out.contiguous()) {
      return copy_row(address_as<const Word>(in, 0, 0), 1, address_as<Word>(out, 0, 0), 1, in.elements());
    }
    for (std::int64_t row = 0; row < in.rows; ++row) {
      copy_row(address_as<const Word>(in, row, 0), in.col_stride, address_as<Word>(out, row, 0), out.col_stride,
               in.cols);
    }
  });
}

void embedding(const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out) {
  for (std::int64_t m = 0; m < out.rows; ++m) {
    const Tensor out_row = out.row_range(m, m + 1);
    const std::int64_t row = local_row(*address_as<const std::int64_t>(ids, 0, m), owned);
    if (row >= 0) {
      cast(table.row_range(row, row + 1), out_row);
    } else {
      with_word(out.dtype, [&](auto zero) {
        for (std::int64_t i = 0; i < out.cols; ++i) *address_as<decltype(zero)>(out_row, 0, i) = zero;
      });
    }
  }
}

void poison(const Tensor& out) {
  with_word(out.dtype, [&](auto word) {
    using Word = decltype(word);
    const Word bits = static_cast<Word>(poison_bits(out.dtype));
    if (out.contiguous()) {  // the usual case: every collective poisons what it fills
      std::fill_n(address_as<Word>(out, 0, 0), out.elements(), bits);
      return;
    }
    for (std::int64_t row = 0; row < out.rows; ++row) {
      Word* values = address_as<Word>(out, row, 0);
      for (std::int64_t i = 0; i < out.cols; ++i) values[i * out.col_stride] = bits;
    }
  });
}

}  // namespace shardcheck::cpu
