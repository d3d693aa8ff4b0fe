// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/primitives.hpp"
#include "kernels/cpu/product.hpp"

namespace shardcheck::cpu {
namespace {

// Rows of the weight per step: widened from 16 bits (192 KiB of f32) they stay in L2 while x passes by.
constexpr std::int64_t kWeightRows = 48;
// Rows of x per step: they too stay in L2 while the weight passes by (and is widened once more for each step).
constexpr std::int64_t kInputRows = 64;
// Up to here each weight is used in one tile only, and widening it in registers is cheaper than in memory.
constexpr std::int64_t kDirectRows = 4;

/// out rows [m, m + rows), columns [n, n + cols) = sums (+ bias), rounded once.           sums [rows, kWeightRows]
template <typename A>
void finish(A* sums, std::int64_t m, std::int64_t rows, std::int64_t n, std::int64_t cols, const A* bias,
            const Tensor& out) {
  for (std::int64_t i = 0; i < rows; ++i) {
    A* row = sums + i * kWeightRows;
    if (bias != nullptr) {
      for (std::int64_t j = 0; j < cols; ++j) row[j] += bias[n + j];
    }
    store(row, out, m + i, n, cols);
  }
}

template <typename A>
class Linear {
 public:
  Linear(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out)
      : weight_(weight), out_(out), m_(x.rows), n_(weight.rows), k_(x.cols) {
    if (x.dtype == kComputeDType<A> && x.col_stride == 1) {
      x_ = {address_as<const A>(x, 0, 0), x.row_stride};
    } else {
      widened_x_ = Scratch<A>(m_ * k_);
      for (std::int64_t m = 0; m < m_; ++m) load(x, m, 0, k_, widened_x_.data() + m * k_);
      x_ = {widened_x_.data(), k_};
    }
    if (bias != nullptr) {
      bias_.resize(static_cast<std::size_t>(n_));
      load(*bias, 0, 0, n_, bias_.data());
    }
  }

  void run() {
    if (weight_.col_stride == 1) {
      if (weight_.dtype == kComputeDType<A>) return in_place<A>();
      if constexpr (std::is_same_v<A, float>) {
        if (m_ <= kDirectRows && weight_.dtype == DType::bf16) return in_place<Bf16>();
        if (m_ <= kDirectRows && weight_.dtype == DType::f16) return in_place<F16>();
      }
    }
    widened_w_ = Scratch<A>(kWeightRows * kDepth<A>);
    steps([this](std::int64_t m, std::int64_t rows, std::int64_t n, std::int64_t cols, std::int64_t k,
                 std::int64_t depth, A* sums) {
      for (std::int64_t j = 0; j < cols; ++j) load(weight_, n + j, k, depth, widened_w_.data() + j * kDepth<A>);
      product_block(Rows<A>{x_.row(m) + k, x_.stride}, rows, Rows<A>{widened_w_.data(), kDepth<A>}, cols, depth, sums,
                    kWeightRows);
    });
  }

 private:
  /// The weight as it lies in memory, W being its storage type.
  template <typename W>
  void in_place() {
    const Rows<W> w{address_as<const W>(weight_, 0, 0), weight_.row_stride};
    steps([this, w](std::int64_t m, std::int64_t rows, std::int64_t n, std::int64_t cols, std::int64_t k,
                    std::int64_t depth, A* sums) {
      product_block(Rows<A>{x_.row(m) + k, x_.stride}, rows, Rows<W>{w.row(n) + k, w.stride}, cols, depth, sums,
                    kWeightRows);
    });
  }

  template <typename Step>
  void steps(Step step) {
    Scratch<A> sums(std::min(m_, kInputRows) * kWeightRows);
    for (std::int64_t m = 0; m < m_; m += kInputRows) {
      const std::int64_t rows = std::min(kInputRows, m_ - m);
      for (std::int64_t n = 0; n < n_; n += kWeightRows) {
        const std::int64_t cols = std::min(kWeightRows, n_ - n);
        std::fill_n(sums.data(), rows * kWeightRows, A{0});
        for (std::int64_t k = 0; k < k_; k += kDepth<A>) {
          step(m, rows, n, cols, k, std::min(kDepth<A>, k_ - k), sums.data());
        }
        finish(sums.data(), m, rows, n, cols, bias_.empty() ? nullptr : bias_.data(), out_);
      }
    }
  }

  const Tensor& weight_;
  const Tensor& out_;
  std::int64_t m_, n_, k_;
  Rows<A> x_{};
  Scratch<A> widened_x_;
  Scratch<A> widened_w_;
  std::vector<A> bias_;
};

}  // namespace

void linear(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) { Linear<decltype(type)>(x, weight, bias, out).run(); });
}

}  // namespace shardcheck::cpu
