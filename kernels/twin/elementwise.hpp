// SPDX-License-Identifier: Apache-2.0
// Twins of the primitives that move values or add once. They are exact: a device must have their bits.
#pragma once

#include <utility>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// a + b as the accumulate dtype holds it; `rounded` gives the stored bits.                        a, b, answer [M, D]
/// A b of one row is added to every row.
inline Matrix add(const Matrix& a, const Matrix& b, DType storage) {
  Matrix sum{a.rows, a.cols, {}};
  for (std::int64_t m = 0; m < a.rows; ++m) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      sum.values.push_back(rounded(accumulate_dtype(storage), a(m, i) + b(b.rows == 1 ? 0 : m, i)));
    }
  }
  return sum;
}

/// Row m is the table's row for ids[m], or zeros where no range holds the id. Local rows are the ranges' ids in order.
///                                                                          table [V_r, D]  answer [ids, D]
inline Matrix embedding(const std::vector<std::int64_t>& ids, const Matrix& table, OwnedRanges owned) {
  Matrix rows{static_cast<std::int64_t>(ids.size()), table.cols, {}};
  for (const std::int64_t id : ids) {
    std::int64_t local = -1, before = 0;
    for (const auto& [begin, end] : owned) {
      if (local < 0 && id >= begin && id < end) local = before + id - begin;
      before += end - begin;
    }
    for (std::int64_t i = 0; i < table.cols; ++i)
      rows.values.push_back(local < 0 ? 0 : table(local, i));
  }
  return rows;
}

}  // namespace shardcheck::twin
