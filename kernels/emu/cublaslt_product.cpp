// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/cublaslt_product.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "model/float_bits.hpp"

namespace shardcheck::emu {
namespace {

/// Rows of D that are summed side by side, each on its own in order of k.
constexpr std::int64_t kBlock = 64;

/// Calls body(load, store) for elements of this type: load(i) widens element i, store(i, value) rounds to it.
template <typename Sum, typename Body>
void with_elements(const void* data, cudaDataType_t type, Body&& body) {
  const auto of = [data](auto zero) {
    return const_cast<decltype(zero)*>(static_cast<const decltype(zero)*>(data));
  };
  if (type == CUDA_R_64F) {
    auto* const at = of(double{});
    body([at](std::int64_t i) { return static_cast<Sum>(at[i]); },
         [at](std::int64_t i, Sum value) { at[i] = static_cast<double>(value); });
  } else if (type == CUDA_R_32F) {
    auto* const at = of(float{});
    body([at](std::int64_t i) { return static_cast<Sum>(at[i]); },
         [at](std::int64_t i, Sum value) { at[i] = static_cast<float>(value); });
  } else if (type == CUDA_R_16BF) {
    auto* const at = of(std::uint16_t{});
    body([at](std::int64_t i) { return static_cast<Sum>(bf16_to_f32(at[i])); },
         [at](std::int64_t i, Sum value) { at[i] = f32_to_bf16(static_cast<float>(value)); });
  } else {
    auto* const at = of(std::uint16_t{});
    body([at](std::int64_t i) { return static_cast<Sum>(f16_to_f32(at[i])); },
         [at](std::int64_t i, Sum value) { at[i] = f32_to_f16(static_cast<float>(value)); });
  }
}

/// to[i] = element first + i stride, for i < count.
template <typename Sum>
void widen(const ColumnMajor& matrix, std::int64_t first, std::int64_t stride, std::int64_t count,
           Sum* to) {
  with_elements<Sum>(matrix.data, matrix.type, [&](auto load, auto) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = load(first + i * stride);
  });
}

template <typename Sum>
class Multiplication {
 public:
  explicit Multiplication(const Product& product)
      : p_(product),
        alpha_(static_cast<Sum>(product.alpha)),
        beta_(static_cast<Sum>(product.beta)),
        a_(static_cast<std::size_t>(product.k * kBlock)),
        b_(static_cast<std::size_t>(product.k)) {}

  void run() {
    for (std::int64_t row = 0; row < p_.m; row += kBlock) {
      const std::int64_t rows = std::min(kBlock, p_.m - row);
      for (std::int64_t k = 0; k < p_.k; ++k) {
        const std::int64_t first = p_.transpose_a ? k + row * p_.a.ld : row + k * p_.a.ld;
        widen(p_.a, first, p_.transpose_a ? p_.a.ld : 1, rows, a_.data() + k * kBlock);
      }
      if (p_.bias != nullptr) widen<Sum>({p_.bias, p_.d.type, p_.m}, row, 1, rows, bias_);
      for (std::int64_t col = 0; col < p_.n; ++col) {
        widen(p_.b, p_.transpose_b ? col : col * p_.b.ld, p_.transpose_b ? p_.b.ld : 1, p_.k,
              b_.data());
        sum_columns();
        finish(row, rows, col);
      }
    }
  }

 private:
  void sum_columns() {
    Sum sums[kBlock] = {};
    const Sum* a = a_.data();
    for (const Sum b : b_) {
      for (std::int64_t i = 0; i < kBlock; ++i) sums[i] = std::fma(a[i], b, sums[i]);
      a += kBlock;
    }
    std::copy(std::begin(sums), std::end(sums), sums_);
  }

  void finish(std::int64_t row, std::int64_t rows, std::int64_t col) {
    Sum old[kBlock];
    if (beta_ != 0) widen(p_.c, row + col * p_.c.ld, 1, rows, old);
    with_elements<Sum>(p_.d.data, p_.d.type, [&](auto, auto store) {
      for (std::int64_t i = 0; i < rows; ++i) {
        Sum value = alpha_ * sums_[i];
        if (beta_ != 0) value += beta_ * old[i];
        if (p_.bias != nullptr) value += bias_[i];
        store(row + i + col * p_.d.ld, value);
      }
    });
  }

  const Product& p_;
  const Sum alpha_, beta_;
  std::vector<Sum> a_;  // [k, kBlock]: the block's rows of op(A)
  std::vector<Sum> b_;  // [k]: a column of op(B)
  Sum sums_[kBlock] = {}, bias_[kBlock] = {};
};

}  // namespace

void compute(const Product& product) {
  if (product.d.type == CUDA_R_64F) return Multiplication<double>(product).run();
  Multiplication<float>(product).run();
}

std::int64_t element_bytes(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

}  // namespace shardcheck::emu
