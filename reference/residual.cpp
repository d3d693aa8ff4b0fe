// SPDX-License-Identifier: Apache-2.0
// What joins the branches of a block: the residual sum, and the product of the gated MLP's two halves.
#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {

template <typename T>
Matrix<T> multiply(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> y(a.rows(), a.cols());
  eigen(y) = eigen(a).cwiseProduct(eigen(b));
  return y;
}

template <typename T>
Matrix<T> add(const Matrix<T>& a, const Matrix<T>& b) {
  Matrix<T> y(a.rows(), a.cols());
  eigen(y) = eigen(a) + eigen(b);
  return y;
}

template Matrix<float> multiply(const Matrix<float>&, const Matrix<float>&);
template Matrix<double> multiply(const Matrix<double>&, const Matrix<double>&);
template Matrix<float> add(const Matrix<float>&, const Matrix<float>&);
template Matrix<double> add(const Matrix<double>&, const Matrix<double>&);

}  // namespace shardcheck::reference
