// SPDX-License-Identifier: Apache-2.0
// Eigen's view of a Matrix. Private: included by .cpp files only, so that no header brings Eigen along.
#pragma once

#include <Eigen/Core>

#include "reference/matrix.hpp"

namespace shardcheck::reference {

template <typename T>
using EigenMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename T>
Eigen::Map<const EigenMatrix<T>> eigen(const Matrix<T>& x) {
  return {x.data(), x.rows(), x.cols()};
}

template <typename T>
Eigen::Map<EigenMatrix<T>> eigen(Matrix<T>& x) {
  return {x.data(), x.rows(), x.cols()};
}

template <typename T>
Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>> eigen_row(std::span<const T> x) {
  return {x.data(), static_cast<Eigen::Index>(x.size())};
}

template <typename T>
Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>> eigen_row(std::span<T> x) {
  return {x.data(), static_cast<Eigen::Index>(x.size())};
}

}  // namespace shardcheck::reference
