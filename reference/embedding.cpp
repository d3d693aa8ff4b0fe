// SPDX-License-Identifier: Apache-2.0
// A token's vector is its row of the table; so is a learned position's.
#include "reference/blocks.hpp"

namespace shardcheck::reference {

template <typename T>
Matrix<T> embedding(std::span<const std::int64_t> ids, std::int64_t features,
                    const WeightRows<T>& table) {
  Matrix<T> y(static_cast<std::int64_t>(ids.size()), features);
  for (std::int64_t m = 0; m < y.rows(); ++m) {
    const std::int64_t id = ids[static_cast<std::size_t>(m)];
    table(id, id + 1, y.row(m));
  }
  return y;
}

template Matrix<float> embedding(std::span<const std::int64_t>, std::int64_t, const WeightRows<float>&);
template Matrix<double> embedding(std::span<const std::int64_t>, std::int64_t,
                                  const WeightRows<double>&);

}  // namespace shardcheck::reference
