// SPDX-License-Identifier: Apache-2.0
// Rows of a table by token id or by position. Nothing is computed, so nothing may differ; only a partial that is sent
// in a wire dtype which can't hold every storage number is rounded, once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/local/local_op.hpp"

namespace shardcheck {
namespace {

bool holds(const Ranges& ranges, std::int64_t index) {
  return std::any_of(ranges.begin(), ranges.end(), [index](const Range& range) {
    return range.begin <= index && index < range.end;
  });
}

}  // namespace

LocalValue local_embedding(const LocalCall& call) {
  const Module& module = call.weights.model().module(call.instruction.module);
  const std::vector<std::int64_t> ids = call.attribute("positions") != 0.0 ? call.positions()
                                                                           : call.ids();
  LocalValue value;
  value.y = F64Matrix(static_cast<std::int64_t>(ids.size()), module.in);
  for (std::size_t m = 0; m < ids.size(); ++m) {
    if (ids[m] < 0 || ids[m] >= module.out) {
      value.problem = fmt::format("row {} asks for entry {} of a table of {}", m, ids[m], module.out);
      return value;
    }
    // A rank that doesn't own the entry adds nothing to the sum.
    if (!holds(call.weight_rows, ids[m])) continue;
    call.weights.read_rows(module.weight(), ids[m], ids[m] + 1,
                           value.y.row(static_cast<std::int64_t>(m)));
  }
  if (!represents(call.out, call.storage)) {
    value.budget = F64Matrix(value.y.rows(), value.y.cols());
    const double u = call.out_roundoff();
    for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i) {
      value.budget.data()[i] = u * std::abs(value.y.data()[i]) + call.underflow();
    }
  }
  return value;
}

}  // namespace shardcheck
