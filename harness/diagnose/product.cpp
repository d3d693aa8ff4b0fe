// SPDX-License-Identifier: Apache-2.0
#include "harness/diagnose/product.hpp"

#include <Eigen/Core>
#include <algorithm>

#include "harness/accurate_product.hpp"

namespace shardcheck {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strided = Eigen::Map<Rows, 0, Eigen::OuterStride<>>;

constexpr std::int64_t kBlockElements = std::int64_t{1} << 18;  // of W at a time

Eigen::Map<const Rows> map(const F64Matrix& x) { return {x.data(), x.rows(), x.cols()}; }

}  // namespace

F64Matrix columns_of(const F64Matrix& x, const Ranges& columns) {
  F64Matrix part(x.rows(), total(columns));
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    std::int64_t at = 0;
    for (const Range& range : columns) {
      std::copy_n(x.row(m).begin() + range.begin, range.size(), part.row(m).begin() + at);
      at += range.size();
    }
  }
  return part;
}

NormedProduct product_of(const RoundedWeights& weights, const Module& module, const F64Matrix& x,
                         const Ranges& x_columns, const Ranges& w_columns) {
  const F64Matrix left = columns_of(x, x_columns);
  NormedProduct product{F64Matrix(x.rows(), module.out), F64Matrix(x.rows(), module.out)};
  const std::int64_t terms = total(w_columns);
  if (terms == 0) return product;
  const std::int64_t step = std::max<std::int64_t>(
      1, kBlockElements / std::max<std::int64_t>(module.in, 1));
  for (std::int64_t begin = 0; begin < module.out; begin += step) {
    const std::int64_t count = std::min(step, module.out - begin);
    F64Matrix block(count, module.in);
    weights.read_rows(module.weight(), begin, begin + count,
                      {block.data(), static_cast<std::size_t>(count * module.in)});
    const F64Matrix right = columns_of(block, w_columns);
    double* const y = product.y.data() + begin;
    if (weights.storage() == DType::f64) {
      accurate_product(left.data(), left.cols(), left.rows(), right.data(), right.cols(), count,
                       terms, y, module.out);
    } else {
      Strided(y, left.rows(), count, Eigen::OuterStride<>(module.out)).noalias() = map(left) *
                                                                                   map(right).transpose();
    }
    Strided(product.norm.data() + begin, left.rows(), count,
            Eigen::OuterStride<>(
                module.out)) = (map(left).cwiseAbs2() * map(right).cwiseAbs2().transpose()).cwiseSqrt();
  }
  return product;
}

}  // namespace shardcheck
