// SPDX-License-Identifier: Apache-2.0
// Load a stretch of a row as f32 or f64, compute, store it with one rounding: how every primitive but the large
// products deals with storage dtypes. The dtype is looked at once per stretch, and the loops behind it vectorise.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/memory.hpp"
#include "kernels/tensor.hpp"

namespace shardcheck::cpu {

inline constexpr std::int64_t kBlock = 1024;  // elements: with two operands and a result well inside a 32 KiB L1

/// The dtype of computing type A.
template <typename A>
inline constexpr DType kComputeDType = std::is_same_v<A, double> ? DType::f64 : DType::f32;

/// out[0, n) = tensor(row, col ...), widened exactly (f64 to f32 only where A is float: never used for values).
template <typename A>
void load(const Tensor& tensor, std::int64_t row, std::int64_t col, std::int64_t n, A* out);

/// tensor(row, col ...) = values[0, n), each rounded once (RNE).
template <typename A>
void store(const A* values, const Tensor& tensor, std::int64_t row, std::int64_t col, std::int64_t n);

/// The elements in place where they are already A's, else loaded into scratch.
template <typename A>
const A* read(const Tensor& tensor, std::int64_t row, std::int64_t col, std::int64_t n, A* scratch) {
  if (tensor.dtype == kComputeDType<A> && tensor.col_stride == 1) return address_as<const A>(tensor, row, col);
  load(tensor, row, col, n, scratch);
  return scratch;
}

extern template void load<float>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, float*);
extern template void load<double>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, double*);
extern template void store<float>(const float*, const Tensor&, std::int64_t, std::int64_t, std::int64_t);
extern template void store<double>(const double*, const Tensor&, std::int64_t, std::int64_t, std::int64_t);

/// Calls body(A{}) with the type to compute in: double where a storage dtype is f64, else float.
template <typename Body>
void with_compute_type(DType storage, Body&& body) {
  if (storage == DType::f64) {
    body(double{});
  } else {
    body(float{});
  }
}

/// Calls body(row, col, n) for stretches of at most kBlock elements that cover the tensor.
template <typename Body>
void for_each_block(const Tensor& tensor, Body&& body) {
  for (std::int64_t row = 0; row < tensor.rows; ++row) {
    for (std::int64_t col = 0; col < tensor.cols; col += kBlock) {
      body(row, col, std::min(kBlock, tensor.cols - col));
    }
  }
}

}  // namespace shardcheck::cpu
