// SPDX-License-Identifier: Apache-2.0
// Products are summed in 128 bits and reduced once in kLazy terms: p^2 kLazy plus a residue stays below 2^128.
#include <algorithm>
#include <vector>

#include "kernels/field/primitives.hpp"

namespace shardcheck::field {
namespace {

constexpr std::int64_t kLazy = 60;
constexpr int kColumns = 4;  // sums that go on at once: one alone would wait for its own carry
static_assert(kLazy < 64);   // p^2 < 2^122

/// A matrix's rows side by side in memory, and which of them hold poison.
class DenseRows {
 public:
  explicit DenseRows(const Tensor& t)
      : first_(&element(t, 0, 0)),
        stride_(t.row_stride),
        poisoned_(static_cast<std::size_t>(t.rows), 0) {
    if (t.col_stride != 1) {
      copy_.resize(static_cast<std::size_t>(t.elements()));
      for (std::int64_t row = 0; row < t.rows; ++row) {
        for (std::int64_t col = 0; col < t.cols; ++col)
          copy_[static_cast<std::size_t>(row * t.cols + col)] = element(t, row, col);
      }
      first_ = copy_.data();
      stride_ = t.cols;
    }
    for (std::int64_t row = 0; row < t.rows; ++row) {
      const Residue* x = this->row(row);
      bool any = false;
      for (std::int64_t i = 0; i < t.cols; ++i) any |= x[i].poisoned();
      poisoned_[static_cast<std::size_t>(row)] = any;
    }
  }
  const Residue* row(std::int64_t i) const { return first_ + i * stride_; }
  bool poisoned(std::int64_t i) const { return poisoned_[static_cast<std::size_t>(i)] != 0; }

 private:
  std::vector<Residue> copy_;
  const Residue* first_;
  std::int64_t stride_;
  std::vector<char> poisoned_;
};

/// out[c] = x . w[c], for kN rows of weights at once. No poison here.
template <int kN>
void dot(const Residue* x, const Residue* const* w, std::int64_t depth, Residue* out) {
  Wide sum[kN] = {};
  for (std::int64_t begin = 0; begin < depth; begin += kLazy) {
    const std::int64_t end = std::min(begin + kLazy, depth);
    for (std::int64_t i = begin; i < end; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kN; ++c) sum[c] += Wide{x[i].bits} * w[c][i].bits;
    }
#pragma GCC unroll 4
    for (int c = 0; c < kN; ++c) sum[c] = reduce(sum[c]);
  }
  for (int c = 0; c < kN; ++c) out[c].bits = static_cast<std::uint64_t>(sum[c]);
}

}  // namespace

void linear(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out) {
  const std::int64_t depth = x.cols;
  if (depth == 0) {
    for (std::int64_t m = 0; m < out.rows; ++m) {
      for (std::int64_t n = 0; n < out.cols; ++n)
        element(out, m, n) = bias != nullptr ? element(*bias, 0, n) : Residue{};
    }
    return;
  }
  const DenseRows a(x), b(weight);
  for (std::int64_t n = 0; n < out.cols; n += kColumns) {
    const std::int64_t columns = std::min<std::int64_t>(kColumns, out.cols - n);
    const Residue* w[kColumns];
    for (std::int64_t c = 0; c < kColumns; ++c) w[c] = b.row(n + std::min(c, columns - 1));
    for (std::int64_t m = 0; m < out.rows; ++m) {
      Residue sums[kColumns];
      if (columns == kColumns) {
        dot<kColumns>(a.row(m), w, depth, sums);
      } else {
        for (std::int64_t c = 0; c < columns; ++c) dot<1>(a.row(m), w + c, depth, sums + c);
      }
      for (std::int64_t c = 0; c < columns; ++c) {
        const bool poisoned = a.poisoned(m) || b.poisoned(n + c);
        const Residue sum = poisoned ? kPoisoned : sums[c];
        element(out, m, n + c) = bias != nullptr ? sum + element(*bias, 0, n + c) : sum;
      }
    }
  }
}

}  // namespace shardcheck::field
