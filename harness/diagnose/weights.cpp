// SPDX-License-Identifier: Apache-2.0
// A product with another weight than the rank's own: another rank's columns, columns that begin elsewhere, another module's
// weight, the transposed one. (Rows of a weight are features of the result: relocated.cpp finds those.) Used where the
// weights themselves can't be looked at; where they can, their bits are the evidence.
#include <fmt/format.h>

#include <algorithm>

#include "harness/diagnose/hypothesis.hpp"
#include "harness/diagnose/product.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t kLargestTried = std::int64_t{1}
                                       << 24;  // elements of a weight whose relatives are tried too

void other_columns(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const Module& module = *op.module();
  const double biases = op.instruction().adds_bias ? 1.0 : 0.0;
  const Ranges own = rank.weight_columns();
  const auto test = [&](std::string_view cause, const Ranges& columns, std::string words) {
    if (columns == own || total(columns) != total(own)) return;
    if (const auto value = rank.product(module, own, columns, biases))
      found.test(cause, *value, std::move(words));
  };
  for (int other = 0; other < op.ranks(); ++other) {
    const Ranges theirs = normalized(op.program().plan.cols_of(module, other));
    test("weight_of_wrong_rank", theirs,
         fmt::format("rank {} multiplied with rank {}'s columns of {}, {}", rank.rank(), other,
                     module.weight(), to_string(theirs)));
    // Its own columns of W, but the other rank's part of x.
    if (theirs != own && total(theirs) == total(own)) {
      if (const auto value = rank.product(module, theirs, own, biases))
        found.test("rows_of_wrong_rank", *value,
                   fmt::format("rank {} multiplied rank {}'s part of {}, features {}", rank.rank(),
                               other, op.inputs().front().name(), to_string(theirs)));
    }
  }
  for (const std::int64_t by : {std::int64_t{1}, std::int64_t{-1}, op.program().config.head_dim,
                                -op.program().config.head_dim}) {
    Ranges moved = own;
    for (Range& range : moved) range = {range.begin + by, range.end + by};
    if (moved.empty() || moved.front().begin < 0 || moved.back().end > module.in) continue;
    test("weight_shifted", moved,
         fmt::format("rank {}'s columns of {} begin {} further on", rank.rank(), module.weight(), by));
  }
  // Heads of its own in another order.
  const std::int64_t unit = op.program().config.head_dim;
  std::vector<Range> heads;
  for (const Range& range : own) {
    if (range.begin % unit != 0 || range.end % unit != 0) return;
    for (std::int64_t at = range.begin; at < range.end; at += unit)
      heads.push_back({at, at + unit});
  }
  if (heads.size() < 2 || heads.size() > 6 || module.role != ModuleRole::o) return;
  std::vector<std::size_t> order(heads.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  while (std::next_permutation(order.begin(), order.end())) {
    Ranges columns;
    for (const std::size_t i : order) columns.push_back(heads[i]);
    if (const auto value = rank.product(module, own, columns, biases))
      found.test("permuted_heads", *value,
                 fmt::format("rank {} multiplied with the columns of its heads in the order {}",
                             rank.rank(), fmt::join(order, ", ")));
  }
}

void other_modules(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const Module& module = *op.module();
  if (module.out * module.in > kLargestTried) return;
  const Ranges own = rank.weight_columns();
  for (const Module& other : op.program().modules) {
    if (other.path == module.path || other.kind != module.kind || other.out != module.out ||
        other.in != module.in)
      continue;
    for (const double biases : {op.instruction().adds_bias && other.has_bias ? 1.0 : 0.0}) {
      if (const auto value = rank.product(other, own, own, biases))
        found.test("weight_of_wrong_module", *value,
                   fmt::format("rank {} multiplied with {} in place of {}", rank.rank(),
                               other.weight(), module.weight()));
    }
    if (found.has("weight_of_wrong_module")) return;
  }
}

void other_norm_weights(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  for (const Module& other : op.program().modules) {
    if (other.path == op.module()->path || other.kind != ModuleKind::norm ||
        other.out != op.module()->out)
      continue;
    const auto value = rank.recompute(
        [&](LocalCall&, Instruction& instruction, Config&) { instruction.module = other.path; });
    if (value)
      found.test("weight_of_wrong_module", *value,
                 fmt::format("rank {} used {} in place of {}", rank.rank(), other.weight(),
                             op.module()->weight()));
  }
}

}  // namespace

void explain_weights(const RankCase& rank, Explanations& found) {
  if (rank.op().module() == nullptr) return;
  if (rank.op().op() == "linear") {
    other_columns(rank, found);
    other_modules(rank, found);
  } else if (rank.op().module()->kind == ModuleKind::norm && rank.op().local() != nullptr) {
    other_norm_weights(rank, found);
  }
}

}  // namespace shardcheck
