// SPDX-License-Identifier: Apache-2.0
#include "harness/accurate_product.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cmath>

namespace shardcheck {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Source = Eigen::Map<const Rows, 0, Eigen::OuterStride<>>;
using Target = Eigen::Map<Rows, 0, Eigen::OuterStride<>>;

constexpr std::int64_t kRowsAtOnce = 512;  // of x: bounds what the halves take

/// Rows as high + low, exactly. Of a row whose largest magnitude is below 2^e, the high half holds the multiples of
/// 2^(e - bits); the low half is the rest.
struct Halves {
  Rows high, low;

  Halves(const Source& from, int bits) : high(from.rows(), from.cols()), low(from) {
    for (Eigen::Index m = 0; m < from.rows(); ++m) {
      int exponent = 0;
      const double largest = from.cols() == 0 ? 0.0 : from.row(m).cwiseAbs().maxCoeff();
      std::frexp(largest, &exponent);
      // Nothing to gain, or no room for the anchor: all of the row is its low half.
      const bool plain = !(from.row(m).array().isFinite().all()) || largest == 0.0 ||
                         std::abs(exponent) > 900;
      if (plain) {
        high.row(m).setZero();
        continue;
      }
      // Adding 1.5 * 2^52 units makes the hardware round to a whole number of units.
      const double anchor = std::ldexp(1.5, 52 + exponent - bits);
      const double* const in = from.row(m).data();
      double* const upper = high.row(m).data();
      double* const lower = low.row(m).data();
      for (Eigen::Index k = 0; k < from.cols(); ++k) {
        upper[k] = (in[k] + anchor) - anchor;
        lower[k] = in[k] - upper[k];
      }
    }
  }
};

}  // namespace

void accurate_product(const double* x, std::int64_t x_stride, std::int64_t rows, const double* w,
                      std::int64_t w_stride, std::int64_t cols, std::int64_t terms, double* y,
                      std::int64_t y_stride) {
  // A sum of `terms` products of two numbers of this many bits fits 53: no order of additions rounds it.
  const int bits = (53 - static_cast<int>(std::bit_width(
                             static_cast<std::uint64_t>(std::max<std::int64_t>(terms, 1))))) /
                   2;
  const Halves weight(Source(w, cols, terms, Eigen::OuterStride<>(w_stride)), bits);
  const Source whole_weight(w, cols, terms, Eigen::OuterStride<>(w_stride));
  Rows exact;
  for (std::int64_t begin = 0; begin < rows; begin += kRowsAtOnce) {
    const std::int64_t count = std::min(kRowsAtOnce, rows - begin);
    const Halves input(Source(x + begin * x_stride, count, terms, Eigen::OuterStride<>(x_stride)),
                       bits);
    Target out(y + begin * y_stride, count, cols, Eigen::OuterStride<>(y_stride));
    exact.noalias() = input.high * weight.high.transpose();
    out.noalias() = input.low * whole_weight.transpose();
    out.noalias() += input.high * weight.low.transpose();
    out += exact;
  }
}

}  // namespace shardcheck
