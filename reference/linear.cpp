// SPDX-License-Identifier: Apache-2.0
// y = x W^T + b. W comes a block of rows at a time, so that only one block of it exists in T.
#include <algorithm>
#include <utility>

#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {
namespace {

// Rows of W per product: about 4 MiB of f64, which a second-level cache nearly holds, but enough rows for the product
// to run at full speed and few enough for a wide W not to grow the block without end.
std::int64_t rows_per_block(std::int64_t in_features) {
  constexpr std::int64_t kElements = std::int64_t{1} << 19;
  return std::clamp<std::int64_t>(kElements / std::max<std::int64_t>(in_features, 1), 64, 1024);
}

}  // namespace

template <typename T>
Matrix<T> linear(const Matrix<T>& x, std::int64_t out_features, const WeightRows<T>& weight,
                 std::span<const T> bias) {
  Matrix<T> y(x.rows(), out_features);
  if (x.rows() == 0) return y;
  const std::int64_t block = std::min(rows_per_block(x.cols()), out_features);
  Matrix<T> w(block, x.cols());
  for (std::int64_t begin = 0; begin < out_features; begin += block) {
    const std::int64_t count = std::min(block, out_features - begin);
    weight(begin, begin + count, {w.data(), static_cast<std::size_t>(count * w.cols())});
    eigen(y).middleCols(begin, count).noalias() = eigen(x) *
                                                  eigen(std::as_const(w)).topRows(count).transpose();
  }
  if (!bias.empty()) eigen(y).array().rowwise() += eigen_row(bias);
  return y;
}

template Matrix<float> linear(const Matrix<float>&, std::int64_t, const WeightRows<float>&,
                              std::span<const float>);
template Matrix<double> linear(const Matrix<double>&, std::int64_t, const WeightRows<double>&,
                               std::span<const double>);

}  // namespace shardcheck::reference
