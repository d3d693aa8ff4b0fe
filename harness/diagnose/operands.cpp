// SPDX-License-Identifier: Apache-2.0
// What is added to a value - a bias, the residual stream - and how often.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "harness/diagnose/hypothesis.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

F64Matrix row_vector(const std::vector<double>& values, std::int64_t rows) {
  F64Matrix all(rows, static_cast<std::int64_t>(values.size()));
  for (std::int64_t m = 0; m < rows; ++m)
    std::copy(values.begin(), values.end(), all.row(m).begin());
  return all;
}

// The numbers of times that ranks may have counted something, besides once.
std::vector<int> counts(const RankCase& rank) {
  std::vector<int> all;
  for (const Mesh::Axis& axis : rank.op().run().mesh.axes) all.push_back(axis.size);
  all.push_back(rank.op().ranks());
  return all;
}

// Module whose value a tap is on the way to.
std::string module_behind(const FailedOp& op) {
  const std::string& tap = op.output().name();
  for (const Module& module : op.program().modules) {
    if (tap == module.path || tap == module.path + ".partial" ||
        tap.starts_with(module.path + ".reduced"))
      return module.path;
  }
  return {};
}

void explain_bias(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const std::string path = module_behind(op);
  const Module* const module = path.empty() ? nullptr : op.program().find_module(path);
  if (module == nullptr || !module->has_bias || module->kind != ModuleKind::linear) return;
  const LocalValue& y = rank.expected();
  const F64Matrix bias = row_vector(op.weights().vector(module->bias()), y.y.rows());
  if (bias.cols() != y.y.cols()) return;
  const double u = op.out_roundoff();
  const bool due = op.instruction().adds_bias || op.op() == "bias" ||
                   (rank.sum() != nullptr && !rank.sum()->bias.empty());
  const std::string tensor = module->bias();
  if (due) {
    found.test("bias_missing", plus(y, -1.0, bias, u),
               fmt::format("rank {} equals the result without {}", rank.rank(), tensor));
  } else {
    found.test("bias_times_tp", plus(y, 1.0, bias, u),
               fmt::format("rank {}'s value has {} already: it is counted once per rank where "
                           "these are summed, or again "
                           "where it is due",
                           rank.rank(), tensor));
  }
  for (const int n : counts(rank)) {
    if (n < 2) continue;
    const double more = due ? n - 1.0 : static_cast<double>(n);
    found.test(
        "bias_times_tp", plus(y, more, bias, u),
        fmt::format("rank {} equals the result with {} counted {} times", rank.rank(), tensor, n));
    if (due)
      found.test("bias_times_tp", plus(y, 1.0 / n - 1.0, bias, 2.0 * u),  // the part is rounded, too
                 fmt::format("rank {} equals the result with 1/{} of {}", rank.rank(), n, tensor));
  }
  if (due)
    found.test("bias_times_tp", plus(y, 1.0, bias, u),
               fmt::format("rank {} equals the result with {} counted twice", rank.rank(), tensor));
  // Other elements of the bias, moved by the distance between two ranks' parts or by one.
  if (!due) return;
  const LocalValue bare = plus(y, -1.0, bias, 0.0);
  const auto moved = [&](std::int64_t by) {
    F64Matrix other(bias.rows(), bias.cols());
    for (std::int64_t m = 0; m < bias.rows(); ++m) {
      for (std::int64_t d = 0; d < bias.cols(); ++d) {
        const std::int64_t from = d + by;
        other(m, d) = from >= 0 && from < bias.cols() ? bias(m, from) : 0.0;
      }
    }
    return plus(bare, 1.0, other, u);
  };
  const Ranges own = rank.features();
  for (int other = 0; other < op.ranks() && !own.empty(); ++other) {
    const Ranges theirs = op.output().layout().feature_ranges(other);
    if (other == rank.rank() || theirs.empty() || theirs == own) continue;
    found.test("weight_of_wrong_rank", moved(theirs.front().begin - own.front().begin),
               fmt::format("rank {} has rank {}'s part of {}", rank.rank(), other, tensor));
  }
  for (const std::int64_t by : {1, -1})
    found.test("weight_shifted", moved(by),
               fmt::format("rank {}'s part of {} begins {} element too {}", rank.rank(), tensor, 1,
                           by > 0 ? "late" : "early"));
}

// The `add` that the value goes into, and its other operand.
std::optional<std::string> residual_of(const FailedOp& op) {
  const std::string path = module_behind(op);
  if (path.empty()) return std::nullopt;
  for (const Instruction& instruction : op.program().instructions.at(op.failure().phase)) {
    if (instruction.op == nullptr || instruction.op->name() != "add" || instruction.inputs.size() != 2)
      continue;
    for (const int side : {0, 1}) {
      if (op.program().value(instruction.inputs[static_cast<std::size_t>(side)]).name == path)
        return op.program().value(instruction.inputs[static_cast<std::size_t>(1 - side)]).name;
    }
  }
  return std::nullopt;
}

void explain_residual_before_the_sum(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const std::optional<std::string> tap = residual_of(op);
  if (!tap) return;
  const std::optional<F64Matrix> residual = op.value(*tap, op.work().steps, rank.rank());
  const LocalValue& y = rank.expected();
  if (!residual || residual->rows() != y.y.rows() || residual->cols() != y.y.cols()) return;
  const double u = op.out_roundoff();
  found.test("residual_times_tp", plus(y, 1.0, *residual, u),
             fmt::format("rank {}'s value has the residual {} already: it is counted once per rank "
                         "where these are summed, "
                         "and again where it is due",
                         rank.rank(), *tap));
  for (const int n : counts(rank)) {
    if (n < 2) continue;
    found.test(
        "residual_times_tp", plus(y, n, *residual, u),
        fmt::format("rank {} equals the result plus {} times the residual {}", rank.rank(), n, *tap));
    found.test(
        "residual_times_tp", plus(y, 1.0 / n, *residual, u),
        fmt::format("rank {} equals the result plus 1/{} of the residual {}", rank.rank(), n, *tap));
  }
}

void explain_add(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  if (op.op() != "add" || rank.inputs().size() != 2) return;
  const F64Matrix &stream = rank.inputs()[0], &update = rank.inputs()[1];
  const LocalValue& y = rank.expected();
  const double u = op.out_roundoff();
  const std::string& first = op.inputs()[0].name();
  const std::string& second = op.inputs()[1].name();
  found.test(
      "residual_missing", plus(y, -1.0, stream, u),
      fmt::format("rank {} equals {} alone, without the residual {}", rank.rank(), second, first));
  found.test(
      "operand_missing", plus(y, -1.0, update, u),
      fmt::format("rank {} equals the residual {} alone, without {}", rank.rank(), first, second));
  std::vector<int> times = counts(rank);
  times.push_back(2);
  for (const int n : times) {
    if (n < 2) continue;
    found.test("residual_times_tp", plus(y, n - 1.0, stream, u),
               fmt::format("rank {} equals the sum with the residual {} counted {} times",
                           rank.rank(), first, n));
    found.test(
        "residual_times_tp", plus(y, 1.0 / n - 1.0, stream, u),
        fmt::format("rank {} equals the sum with 1/{} of the residual {}", rank.rank(), n, first));
    found.test(n == 2 && op.ranks() != 2 ? "factor_two" : "factor_tp", plus(y, n - 1.0, update, u),
               fmt::format("rank {} equals the sum with {} counted {} times", rank.rank(), second, n));
    found.test("factor_inverse_tp", plus(y, 1.0 / n - 1.0, update, u),
               fmt::format("rank {} equals the sum with 1/{} of {}", rank.rank(), n, second));
  }
}

}  // namespace

void explain_operands(const RankCase& rank, Explanations& found) {
  explain_bias(rank, found);
  explain_residual_before_the_sum(rank, found);
  explain_add(rank, found);
}

}  // namespace shardcheck
