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

template <typename A>
void rms_norm(const Tensor& x, const Tensor& weight, A eps, const Tensor& out) {
  const std::int64_t d = x.cols;
  Scratch<A> x_scratch(d), w_scratch(d), result(d);
  const A* w = read(weight, 0, 0, d, w_scratch.data());
  A* y = result.data();
  for (std::int64_t m = 0; m < x.rows; ++m) {
    const A* row = read(x, m, 0, d, x_scratch.data());
    const A scale = A{1} / std::sqrt(sum_of_squares(row, d) / static_cast<A>(d) + eps);
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
    rms_norm<A>(x, weight, static_cast<A>(eps), out);
  });
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    layer_norm<A>(x, weight, bias, static_cast<A>(eps), out);
  });
}

}  // namespace shardcheck::cpu
