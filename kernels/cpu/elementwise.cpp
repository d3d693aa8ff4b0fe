// SPDX-License-Identifier: Apache-2.0
// add, bias, cast: one rounding of an exact or once rounded value.
#include "kernels/cpu/block.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

/// out = a + b, where b's row is b_row(row).
template <typename A, typename Row>
void add_rows(const Tensor& a, const Tensor& b, const Tensor& out, Row b_row) {
  Scratch<A> a_scratch(kBlock), b_scratch(kBlock), result(kBlock);
  for_each_block(out, [&](std::int64_t row, std::int64_t col, std::int64_t n) {
    const A* left = read(a, row, col, n, a_scratch.data());
    const A* right = read(b, b_row(row), col, n, b_scratch.data());
    A* y = result.data();
    for (std::int64_t i = 0; i < n; ++i) y[i] = left[i] + right[i];
    store(y, out, row, col, n);
  });
}

}  // namespace

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  with_compute_type(a.dtype, [&](auto type) {
    add_rows<decltype(type)>(a, b, out, [](std::int64_t row) { return row; });
  });
}

void bias(const Tensor& x, const Tensor& bias, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    add_rows<decltype(type)>(x, bias, out, [](std::int64_t) { return std::int64_t{0}; });
  });
}

void cast(const Tensor& in, const Tensor& out) {
  if (in.dtype == out.dtype) return copy(in, out);
  with_compute_type(in.dtype, [&](auto type) {
    using A = decltype(type);
    Scratch<A> scratch(kBlock);
    for_each_block(out, [&](std::int64_t row, std::int64_t col, std::int64_t n) {
      store(read(in, row, col, n, scratch.data()), out, row, col, n);
    });
  });
}

}  // namespace shardcheck::cpu
