// SPDX-License-Identifier: Apache-2.0
// Norms and rotary embedding.
#include <vector>

#include "kernels/field/primitives.hpp"

namespace shardcheck::field {

namespace {

Residue squares_of_row(const Tensor& x, std::int64_t m) {
  Residue squares;
  for (std::int64_t i = 0; i < x.cols; ++i) squares = squares + element(x, m, i) * element(x, m, i);
  return squares;
}

void scale_row(const Tensor& x, const Tensor& weight, Residue scale, std::int64_t m, const Tensor& out) {
  for (std::int64_t i = 0; i < x.cols; ++i)
    element(out, m, i) = element(x, m, i) * scale * element(weight, 0, i);
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, Residue eps, Hash& rsqrt, const Tensor& out) {
  const Residue share = inverse(count(x.cols));
  for (std::int64_t m = 0; m < x.rows; ++m)
    scale_row(x, weight, rsqrt(squares_of_row(x, m) * share + eps), m, out);
}

void square_sum(const Tensor& x, const Tensor& out) {
  for (std::int64_t m = 0; m < x.rows; ++m) element(out, m, 0) = squares_of_row(x, m);
}

void rms_apply(const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features,
               Residue eps, Hash& rsqrt, const Tensor& out) {
  const Residue share = inverse(count(features));
  for (std::int64_t m = 0; m < x.rows; ++m)
    scale_row(x, weight, rsqrt(element(squares, m, 0) * share + eps), m, out);
}

void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Residue eps, Hash& rsqrt,
                const Tensor& out) {
  const Residue share = inverse(count(x.cols));
  std::vector<Residue> centred(static_cast<std::size_t>(x.cols));
  for (std::int64_t m = 0; m < x.rows; ++m) {
    Residue sum, squares;
    for (std::int64_t i = 0; i < x.cols; ++i) sum = sum + element(x, m, i);
    const Residue mean = sum * share;
    for (std::int64_t i = 0; i < x.cols; ++i) {
      const Residue c = centred[static_cast<std::size_t>(i)] = element(x, m, i) - mean;
      squares = squares + c * c;
    }
    const Residue scale = rsqrt(squares * share + eps);
    for (std::int64_t i = 0; i < x.cols; ++i) {
      element(out, m, i) = centred[static_cast<std::size_t>(i)] * scale * element(weight, 0, i) +
                           element(bias, 0, i);
    }
  }
}

void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
          RopeConvention convention, const Tensor& out) {
  const std::int64_t half = head_dim / 2;
  const bool halves = convention == RopeConvention::half_split;
  for (std::int64_t m = 0; m < x.rows; ++m) {
    for (std::int64_t head = 0; head < x.cols; head += head_dim) {
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t at = head + (halves ? i : 2 * i),
                           partner = head + (halves ? i + half : 2 * i + 1);
        const Residue a = element(x, m, at), b = element(x, m, partner);
        const Residue c = element(cos, m, i), s = element(sin, m, i);
        element(out, m, at) = a * c - b * s;
        element(out, m, partner) = b * c + a * s;
      }
    }
  }
}

}  // namespace shardcheck::field
