// SPDX-License-Identifier: Apache-2.0
// The nonlinearities of the MLP, element by element.
#include <cmath>
#include <numbers>

#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {

template <typename T>
Matrix<T> silu(const Matrix<T>& x) {
  Matrix<T> y(x.rows(), x.cols());
  eigen(y) = eigen(x).unaryExpr([](T v) { return v / (T(1) + std::exp(-v)); });
  return y;
}

template <typename T>
Matrix<T> gelu_tanh(const Matrix<T>& x) {
  const T slope = static_cast<T>(std::sqrt(2.0 / std::numbers::pi));
  Matrix<T> y(x.rows(), x.cols());
  eigen(y) = eigen(x).unaryExpr([slope](T v) {
    return T(0.5) * v * (T(1) + std::tanh(slope * (v + T(0.044715) * v * v * v)));
  });
  return y;
}

template Matrix<float> silu(const Matrix<float>&);
template Matrix<double> silu(const Matrix<double>&);
template Matrix<float> gelu_tanh(const Matrix<float>&);
template Matrix<double> gelu_tanh(const Matrix<double>&);

}  // namespace shardcheck::reference
