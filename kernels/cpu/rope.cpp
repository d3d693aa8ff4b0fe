// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

template <typename A>
void rotate_half_split(const A* x, const A* cos, const A* sin, std::int64_t half, A* y) {
  for (std::int64_t i = 0; i < half; ++i) y[i] = x[i] * cos[i] - x[i + half] * sin[i];
  for (std::int64_t i = 0; i < half; ++i) y[i + half] = x[i + half] * cos[i] + x[i] * sin[i];
}

template <typename A>
void rotate_interleaved(const A* x, const A* cos, const A* sin, std::int64_t half, A* y) {
  for (std::int64_t i = 0; i < half; ++i) {
    y[2 * i] = x[2 * i] * cos[i] - x[2 * i + 1] * sin[i];
    y[2 * i + 1] = x[2 * i + 1] * cos[i] + x[2 * i] * sin[i];
  }
}

template <typename A>
void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim, RopeConvention convention,
          const Tensor& out) {
  const std::int64_t half = head_dim / 2;
  Scratch<A> x_scratch(x.cols), cos_scratch(half), sin_scratch(half), result(x.cols);
  for (std::int64_t m = 0; m < x.rows; ++m) {
    const A* row = read(x, m, 0, x.cols, x_scratch.data());
    const A* c = read(cos, m, 0, half, cos_scratch.data());
    const A* s = read(sin, m, 0, half, sin_scratch.data());
    for (std::int64_t first = 0; first < x.cols; first += head_dim) {
      if (convention == RopeConvention::half_split) {
        rotate_half_split(row + first, c, s, half, result.data() + first);
      } else {
        rotate_interleaved(row + first, c, s, half, result.data() + first);
      }
    }
    store(result.data(), out, m, 0, x.cols);
  }
}

}  // namespace

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim, RopeConvention convention,
          const Tensor& out) {
  with_compute_type(x.dtype,
                    [&](auto type) { rope<decltype(type)>(x, cos, sin, head_dim, convention, out); });
}

}  // namespace shardcheck::cpu
