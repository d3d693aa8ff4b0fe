// SPDX-License-Identifier: Apache-2.0
// out += A B^T for row-major A and B: both operands are read along their rows, so nothing is packed, and every
// element is summed in the same order whatever M and N are:
//
//   K is cut into blocks of kDepth; within a block element k goes to lane k mod kLanes; the lanes are added by
//   sum_lanes; the blocks are added in turn.
//
// This is what makes an element's bits independent of the shard, the batch and the thread. A library's product
// (Eigen's among them) chooses its blocking, and so its order, from M and N.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/lanes.hpp"

namespace shardcheck::cpu {

/// Elements of K summed in lanes before they are added to the result: 4 KiB of a row.
template <typename T>
inline constexpr std::int64_t kDepth = 4096 / static_cast<std::int64_t>(sizeof(T));

/// A row-major operand: rows `stride` elements apart.
template <typename T>
struct Rows {
  const T* data;
  std::int64_t stride;
  const T* row(std::int64_t i) const { return data + i * stride; }
};

/// The sums of kM rows of a with kN rows of b over `depth` <= kDepth elements, added to out[m * out_stride + n] for
/// n < valid. Rows of b from `valid` on repeat the last one. kM * kN is a multiple of four.
template <int kM, int kN, typename T, typename W>
void product_tile(Rows<T> a, Rows<W> b, int valid, std::int64_t depth, T* out, std::int64_t out_stride) {
  static_assert(kM * kN % 4 == 0);
  const W* b_row[kN];
  for (int n = 0; n < kN; ++n) b_row[n] = b.row(std::min(n, valid - 1));
  Vector<T> sum[kM * kN] = {};
  const auto accumulate = [&](auto load_a, auto load_b) {
    Vector<T> b_lanes[kN];
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) b_lanes[n] = load_b(b_row[n]);
#pragma GCC unroll 4
    for (int m = 0; m < kM; ++m) {
      const Vector<T> a_lanes = load_a(a.row(m));
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) sum[m * kN + n] = multiply_add(a_lanes, b_lanes[n], sum[m * kN + n]);
    }
  };
  std::int64_t k = 0;
  if constexpr (kM == 1) {
    // One row of a uses each element of b once, so memory sets the pace; rows are short, and the hardware's prefetcher
    // would start anew at each. The address may lie behind the last row: a prefetch of it does nothing.
    for (; k + 2 * kLanes<T> <= depth; k += 2 * kLanes<T>) {
#pragma GCC unroll 8
      for (int n = 0; n < kN; ++n) __builtin_prefetch(b_row[n] + kN * b.stride + k);
      accumulate([k](const T* row) { return load_lanes(row + k); }, [k](const W* row) { return load_lanes(row + k); });
      accumulate([k](const T* row) { return load_lanes(row + k + kLanes<T>); },
                 [k](const W* row) { return load_lanes(row + k + kLanes<T>); });
    }
  }
  for (; k + kLanes<T> <= depth; k += kLanes<T>) {
    accumulate([k](const T* row) { return load_lanes(row + k); }, [k](const W* row) { return load_lanes(row + k); });
  }
  if (k < depth) {
    accumulate([k, depth](const T* row) { return load_some<T>(row + k, depth - k); },
               [k, depth](const W* row) { return load_some<T>(row + k, depth - k); });
  }
  T total[kM * kN];
#pragma GCC unroll 4
  for (int i = 0; i < kM * kN; i += 4) {
    const Four<T> four = sum_lanes<T>(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    std::memcpy(total + i, &four, sizeof(four));
  }
  const auto add_to_out = [&](int columns) {
    for (int m = 0; m < kM; ++m) {
      for (int n = 0; n < columns; ++n) out[m * out_stride + n] += total[m * kN + n];
    }
  };
  if (valid == kN) {
    add_to_out(kN);  // a constant: unrolled
  } else {
    add_to_out(valid);
  }
}

template <int kM, int kN, typename T, typename W>
void product_strip(Rows<T> a, Rows<W> b, std::int64_t n_rows, std::int64_t depth, T* out, std::int64_t out_stride) {
  for (std::int64_t n = 0; n < n_rows; n += kN) {
    const int valid = static_cast<int>(std::min<std::int64_t>(kN, n_rows - n));
    product_tile<kM, kN>(a, Rows<W>{b.row(n), b.stride}, valid, depth, out + n, out_stride);
  }
}

/// out[m, n] += sum over `depth` <= kDepth elements of a's row m times b's row n.      a [M, depth]  b [N, depth]
template <typename T, typename W>
void product_block(Rows<T> a, std::int64_t m_rows, Rows<W> b, std::int64_t n_rows, std::int64_t depth, T* out,
                   std::int64_t out_stride) {
  constexpr std::int64_t kGroup = 12;  // rows of b that stay in L1 while all of a passes by
  const std::int64_t fours = m_rows / 4 * 4;
  for (std::int64_t n = 0; fours > 0 && n < n_rows; n += kGroup) {
    const Rows<W> b_group{b.row(n), b.stride};
    for (std::int64_t m = 0; m < fours; m += 4) {
      product_strip<4, 3>(Rows<T>{a.row(m), a.stride}, b_group, std::min(kGroup, n_rows - n), depth,
                          out + m * out_stride + n, out_stride);
    }
  }
  const Rows<T> rest{a.row(fours), a.stride};
  T* const rest_out = out + fours * out_stride;
  switch (m_rows - fours) {
    case 3: product_strip<3, 4>(rest, b, n_rows, depth, rest_out, out_stride); break;
    case 2: product_strip<2, 6>(rest, b, n_rows, depth, rest_out, out_stride); break;
    case 1: product_strip<1, 4>(rest, b, n_rows, depth, rest_out, out_stride); break;
    default: break;
  }
}

}  // namespace shardcheck::cpu
