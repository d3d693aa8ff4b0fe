// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/lanes.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

template <typename A>
A sum(const A* x, std::int64_t n) {
  return sum_over(x, n, [](const Vector<A>& v) { return v; });
}

template <typename A>
A sum_of_squares(const A* x, std::int64_t n) {
  return sum_over(x, n, [](const Vector<A>& v) { return v * v; });
}

/// out = x / sqrt(squares(m, row m) / features + eps) * weight, row by row.
template <typename A, typename Squares>
void scale_rows(const Tensor& x, const Tensor& weight, std::int64_t features, A eps, const Tensor& out,
                Squares squares) {
  const std::int64_t d = x.cols;
  Scratch<A> x_scratch(d), w_scratch(d), result(d);
  const A* w = read(weight, 0, 0, d, w_scratch.data());
  A* y = result.data();
  for (std::int64_t m = 0; m < x.rows; ++m) {
    const A* row = read(x, m, 0, d, x_scratch.data());
    const A scale = A{1} / std::sqrt(squares(m, row) / static_cast<A>(features) + eps);
    for (std::int64_t i = 0; i < d; ++i) y[i] = row[i] * scale * w[i];
    store(y, out, m, 0, d);
  }
}

template <typename A>
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, A eps, const Tensor& out) {
  const std::int64_t d = x.cols;
  Scratch<A> x_scratch(d), w_scratch(d), b_scratch(d), result(d);
  const A* w = read(weight, 0, 0, d, w_scratch.data());
  const A* b = read(bias, 0, 0, d, b_scratch.data());
  A* y = result.data();
  for (std::int64_t m = 0; m < x.rows; ++m) {
    const A* row = read(x, m, 0, d, x_scratch.data());
    const A mean = sum(row, d) / static_cast<A>(d);
    for (std::int64_t i = 0; i < d; ++i) y[i] = row[i] - mean;
    const A scale = A{1} / std::sqrt(sum_of_squares(y, d) / static_cast<A>(d) + eps);
    for (std::int64_t i = 0; i < d; ++i) y[i] = y[i] * scale * w[i] + b[i];
    store(y, out, m, 0, d);
  }
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    scale_rows<A>(x, weight, x.cols, static_cast<A>(eps), out,
                  [&](std::int64_t, const A* row) { return sum_of_squares(row, x.cols); });
  });
}

void square_sum(const Tensor& x, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    Scratch<A> scratch(x.cols);
    for (std::int64_t m = 0; m < x.rows; ++m)
      *address_as<A>(out, m, 0) = sum_of_squares(read(x, m, 0, x.cols, scratch.data()), x.cols);
  });
}

void rms_apply(const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features, double eps,
               const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    scale_rows<A>(x, weight, features, static_cast<A>(eps), out,
                  [&](std::int64_t m, const A*) { return *address_as<const A>(squares, m, 0); });
  });
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    layer_norm<A>(x, weight, bias, static_cast<A>(eps), out);
  });
}

}  // namespace shardcheck::cpu
