// SPDX-License-Identifier: Apache-2.0
// One section of a fused output (q of q | k | v): a copy, so nothing may differ.
#include <fmt/format.h>

#include <algorithm>

#include "harness/local/local_op.hpp"

namespace shardcheck {

LocalValue local_split(const LocalCall& call) {
  const F64Matrix& x = call.inputs[0];
  const auto begin = static_cast<std::int64_t>(call.attribute("begin"));
  const auto end = static_cast<std::int64_t>(call.attribute("end"));
  LocalValue value;
  if (begin < 0 || end < begin || end > x.cols()) {
    value.problem = fmt::format("section [{}, {}) lies outside of {} features", begin, end, x.cols());
    return value;
  }
  value.y = F64Matrix(x.rows(), end - begin);
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    std::copy_n(x.row(m).begin() + begin, end - begin, value.y.row(m).begin());
  }
  return value;
}

}  // namespace shardcheck
