// SPDX-License-Identifier: Apache-2.0
// LayerNorm: each token centred and divided by its standard deviation, then scaled and shifted per feature.
// Source: Ba, Kiros and Hinton 2016 (arXiv 1607.06450).
#include <cmath>

#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {

template <typename T>
Matrix<T> layer_norm(const Matrix<T>& x, std::span<const T> weight, std::span<const T> bias,
                     double eps) {
  Matrix<T> y(x.rows(), x.cols());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    const auto row = eigen_row(x.row(m));
    auto centred = eigen_row(y.row(m));
    centred = row - row.mean();
    // The variance of the centred values, not mean(x^2) - mean(x)^2: that difference cancels.
    const T variance = centred.square().mean();
    centred = centred / std::sqrt(variance + static_cast<T>(eps)) * eigen_row(weight) + eigen_row(bias);
  }
  return y;
}

template Matrix<float> layer_norm(const Matrix<float>&, std::span<const float>,
                                  std::span<const float>, double);
template Matrix<double> layer_norm(const Matrix<double>&, std::span<const double>,
                                   std::span<const double>, double);

}  // namespace shardcheck::reference
