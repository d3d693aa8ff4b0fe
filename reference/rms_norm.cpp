// SPDX-License-Identifier: Apache-2.0
// RMSNorm: each token, or each head of a token, divided by its root mean square, then scaled per feature.
// Source: Zhang and Sennrich 2019 (arXiv 1910.07467).
#include <cmath>

#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {

template <typename T>
Matrix<T> rms_norm(const Matrix<T>& x, std::span<const T> weight, double eps) {
  Matrix<T> y(x.rows(), x.cols());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    const auto row = eigen_row(x.row(m));
    const T mean_square = row.square().mean();
    const T rms = std::sqrt(mean_square + static_cast<T>(eps));
    eigen_row(y.row(m)) = row / rms * eigen_row(weight);
  }
  return y;
}

template <typename T>
Matrix<T> head_norm(const Matrix<T>& x, std::span<const T> weight, double eps) {
  const auto head_dim = static_cast<std::int64_t>(weight.size());
  // The same values, a head a row.
  const Matrix<T> heads(x.rows() * x.cols() / head_dim, head_dim, x.values());
  return {x.rows(), x.cols(), rms_norm(heads, weight, eps).values()};
}

template Matrix<float> rms_norm(const Matrix<float>&, std::span<const float>, double);
template Matrix<double> rms_norm(const Matrix<double>&, std::span<const double>, double);
template Matrix<float> head_norm(const Matrix<float>&, std::span<const float>, double);
template Matrix<double> head_norm(const Matrix<double>&, std::span<const double>, double);

}  // namespace shardcheck::reference
