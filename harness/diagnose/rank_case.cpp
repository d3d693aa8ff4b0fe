// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/diagnose/failed_op.hpp"
#include "harness/diagnose/product.hpp"
#include "harness/judge_collective.hpp"
#include "harness/judge_requests.hpp"

namespace shardcheck {
namespace {

bool holds(const Ranges& ranges, std::int64_t index) {
  return std::any_of(ranges.begin(), ranges.end(), [index](const Range& range) {
    return range.begin <= index && index < range.end;
  });
}

F64Matrix squared(const F64Matrix& x, double factor) {
  F64Matrix y(x.rows(), x.cols());
  for (std::int64_t i = 0; i < x.rows() * x.cols(); ++i)
    y.data()[i] = std::pow(factor * x.data()[i], 2.0);
  return y;
}

std::string counted(const std::vector<bool>& flags, std::string_view what) {
  const auto wrong = static_cast<std::size_t>(std::count(flags.begin(), flags.end(), true));
  const auto first = std::find(flags.begin(), flags.end(), true) - flags.begin();
  std::ptrdiff_t last = first;
  for (std::size_t i = 0; i < flags.size(); ++i)
    last = flags[i] ? static_cast<std::ptrdiff_t>(i) : last;
  if (wrong == 1) return fmt::format("{} {}", what, first);
  return fmt::format("{} {}s from {} to {}", wrong, what, first, last);
}

}  // namespace

const Term* SumOfRanks::of(int rank) const {
  const auto found = std::find_if(terms.begin(), terms.end(),
                                  [rank](const Term& t) { return t.rank == rank; });
  return found == terms.end() ? nullptr : &*found;
}

std::vector<double> SumOfRanks::member_factors() const {
  std::vector<double> factors;
  for (const Term& term : terms)
    factors.push_back(std::find(members.begin(), members.end(), term.rank) != members.end() ? 1.0
                                                                                            : 0.0);
  return factors;
}

LocalValue SumOfRanks::combine(const std::vector<double>& factors) const {
  LocalValue value;
  const F64Matrix& shape = terms.front().value;
  value.y = F64Matrix(shape.rows(), shape.cols());
  value.budget = F64Matrix(shape.rows(), shape.cols());
  double* const y = value.y.data();
  double* const b = value.budget.data();
  const std::int64_t n = shape.rows() * shape.cols();
  bool first = true;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    if (factors[t] == 0.0) continue;  // a share that isn't meant may be NaN
    for (std::int64_t i = 0; i < n; ++i) {
      const double term = factors[t] * terms[t].value.data()[i];
      y[i] = first ? term : maximum ? std::max(y[i], term) : y[i] + term;
      b[i] += factors[t] * factors[t] * terms[t].variance.data()[i];
    }
    first = false;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    if (!bias.empty()) y[i] += bias[static_cast<std::size_t>(i % shape.cols())];
    b[i] = maximum ? 0.0 : per_result * std::abs(y[i]) + std::sqrt(b[i]) + constant;
  }
  return value;
}

RankCase::RankCase(const FailedOp& op, int rank) : op_(op), rank_(rank) {
  problem_ = op.output().defect(rank);
  if (!problem_.empty()) {
    problem_ = fmt::format("{} {}", op.output().name(), problem_);
    return;
  }
  for (const TapReader& input : op.inputs()) {
    if (!input.present()) {
      problem_ = fmt::format("its input {} is missing", input.name());
      return;
    }
    const std::vector<int> peers = input.seen_by(rank);
    for (const int peer : peers) {
      if (problem_.empty() && !input.defect(peer).empty())
        problem_ = fmt::format("its input {} {}", input.name(), input.defect(peer));
    }
    if (!problem_.empty()) return;
    inputs_.push_back(input.assemble(peers));
  }
  got_ = op.output().assemble({rank});
  for (std::size_t s = 0; s < op.output().steps(); ++s)
    step_of_row_.insert(step_of_row_.end(), static_cast<std::size_t>(op.output().rows(s)), s);
  const Ranges own = features();
  owned_.assign(static_cast<std::size_t>(got_.rows() * got_.cols()), false);
  std::int64_t before = 0;
  for (std::size_t s = 0; s < op.output().steps(); ++s) {
    for (const Range& rows : op.output().row_ranges(s, rank)) {
      for (std::int64_t m = before + rows.begin; m < before + rows.end; ++m) {
        for (const Range& range : own)
          std::fill_n(owned_.begin() + m * got_.cols() + range.begin, range.size(), true);
      }
    }
    before += op.output().rows(s);
  }
  find_sum();
  find_expected();
  if (!expected_.problem.empty()) problem_ = expected_.problem;
  if (problem_.empty()) find_wrong();
}

Ranges RankCase::weight_columns() const {
  const Module& module = *op_.module();
  const Layout& planned = op_.program().value(op_.instruction().outputs[0]).layout;
  return planned.any_partial() ? normalized(op_.program().plan.cols_of(module, rank_))
                               : Ranges{{0, module.in}};
}

// The shares that the value is, or could be, a sum of: the ranks' own in a reduction, the products of the ranks' columns
// where a weight is cut along them.
void RankCase::find_sum() {
  const Program& program = op_.program();
  if (op_.op().empty()) {
    using Kind = CollectiveStep::Kind;
    const Kind kind = op_.instruction().collective.kind;
    const TapReader& input = op_.inputs().front();
    const bool adds = kind == Kind::all_reduce || kind == Kind::reduce_scatter;
    if (!adds && !collective_sums(op_.work(), input)) return;
    SumOfRanks sum;
    sum.members = collective_sources(op_.work(), input, rank_);
    sum.maximum = collective_takes_maximum(op_.work(), input);
    const ReductionBudget unit = reduction_budget(op_.run().reduction,
                                                  static_cast<int>(sum.members.size()),
                                                  input.dtype(), op_.output().dtype());
    sum.per_result = unit.per_result;
    sum.constant = unit.constant;
    sum.sent_roundoff = unit_roundoff(input.dtype());
    for (int rank = 0; rank < op_.ranks(); ++rank) {
      if (!input.defect(rank).empty()) continue;
      if (input.layout().feature_ranges(rank) != input.layout().feature_ranges(rank_)) continue;
      Term term{rank, input.assemble({rank}), {}};
      term.variance = squared(term.value, unit.per_terms);
      sum.terms.push_back(std::move(term));
    }
    sum_ = std::move(sum);
    return;
  }
  if (op_.op() != "linear" || op_.module() == nullptr ||
      program.plan.placement(op_.module()->path).cols.empty())
    return;
  const Module& module = *op_.module();
  if (inputs_.front().cols() != module.in || op_.output().layout().features != module.out) return;
  SumOfRanks sum;
  const bool partial = op_.output().layout().any_partial();
  const Ranges own = normalized(program.plan.cols_of(module, rank_));
  std::vector<Ranges> seen;
  for (int rank = 0; rank < op_.ranks(); ++rank) {
    const Ranges columns = normalized(program.plan.cols_of(module, rank));
    if (std::find(seen.begin(), seen.end(), columns) != seen.end()) continue;
    seen.push_back(columns);
    if (!partial || columns == own) sum.members.push_back(rank);
    NormedProduct share = product_of(op_.weights(), module, inputs_.front(), columns, columns);
    sum.terms.push_back({rank, std::move(share.y), std::move(share.norm)});
  }
  std::int64_t width = 0;
  for (const int member : sum.members) width += total(program.plan.cols_of(module, member));
  const bool bias = op_.instruction().adds_bias ||
                    (module.has_bias && op_.output().name() == module.path);
  const ProductBudget unit = product_budget(op_.output().dtype(), width + (bias ? 1 : 0),
                                            op_.arithmetic(Primitive::linear));
  ReductionBudget hops;
  if (sum.members.size() > 1) {
    hops = reduction_budget(op_.run().reduction, static_cast<int>(sum.members.size()),
                            op_.run().wire, op_.output().dtype());
    if (!partial) hops.per_terms = std::hypot(unit_roundoff(op_.run().wire), hops.per_terms);
  }
  sum.per_result = std::max(unit.per_result, hops.per_result) +
                   (bias && hops.per_terms > 0.0 ? op_.out_roundoff() : 0.0);
  sum.constant = unit.constant + hops.constant;
  if (bias) sum.bias = op_.weights().vector(module.bias());
  for (Term& term : sum.terms) {
    term.variance = squared(term.variance, unit.per_norm);
    for (std::int64_t i = 0; i < term.value.rows() * term.value.cols(); ++i)
      term.variance.data()[i] += std::pow(hops.per_terms * term.value.data()[i], 2.0);
  }
  sum_ = std::move(sum);
}

void RankCase::find_expected() {
  if (op_.op().empty()) {
    const TapReader& input = op_.inputs().front();
    const bool sums = collective_sums(op_.work(), input);
    expected_ = sums && sum_ ? sum_->combine(sum_->member_factors())
                             : moved_value(input, collective_sources(op_.work(), input, rank_),
                                           op_.output().dtype());
  } else if (sum_) {
    expected_ = sum_->combine(sum_->member_factors());
  } else if (op_.op() == "linear") {
    if (op_.module() == nullptr || inputs_.front().cols() != op_.module()->in) {
      problem_ = "its input has another width than its weight";
      return;
    }
    expected_ = *product(*op_.module(), weight_columns(), weight_columns(),
                         op_.instruction().adds_bias ? 1.0 : 0.0);
  } else if (op_.local() == nullptr) {
    problem_ = fmt::format("op '{}' has no recomputation", op_.op());
  } else {
    const std::optional<LocalValue> value = recompute([](LocalCall&, Instruction&, Config&) {});
    if (value) {
      expected_ = *value;
    } else {
      problem_ = "it can't be recomputed from its inputs";
    }
  }
}

std::optional<LocalValue> RankCase::recompute(const Change& change) const {
  if (op_.local() == nullptr) return std::nullopt;
  Instruction instruction = op_.instruction();
  Config config = op_.program().config;
  LocalCall call{config, instruction, op_.weights(), {}};
  call.arithmetic = [this](Primitive primitive, DType) { return op_.arithmetic(primitive); };
  call.storage = op_.run().storage;
  call.out = op_.output().dtype();
  call.output = op_.output_index();
  call.weight_rows = op_.work().weight_rows(rank_);
  call.columns = {{0, op_.output().layout().features}};
  for (const std::size_t s : op_.work().steps) call.steps.push_back(&op_.run().steps[s].step);
  for (const std::size_t s : op_.work().history()) call.history.push_back(&op_.run().steps[s].step);
  call.inputs = inputs_;
  change(call, instruction, config);
  LocalValue value = op_.local()->recompute(call);
  if (!value.problem.empty()) return std::nullopt;
  return value;
}

std::optional<LocalValue> RankCase::product(const Module& module, const Ranges& x_columns,
                                            const Ranges& w_columns, double biases) const {
  if (total(x_columns) != total(w_columns) || inputs_.empty()) return std::nullopt;
  if (module.out != op_.output().layout().features) return std::nullopt;
  const ProductBudget unit = product_budget(op_.output().dtype(),
                                            total(w_columns) + (biases != 0.0 ? 1 : 0),
                                            op_.arithmetic(Primitive::linear));
  NormedProduct share = product_of(op_.weights(), module, inputs_.front(), x_columns, w_columns);
  std::vector<double> bias(static_cast<std::size_t>(module.out), 0.0);
  if (biases != 0.0 && module.has_bias) bias = op_.weights().vector(module.bias());
  LocalValue value{std::move(share.y), std::move(share.norm), {}};
  for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i) {
    const double added = biases * bias[static_cast<std::size_t>(i % value.y.cols())];
    double& y = value.y.data()[i];
    double& b = value.budget.data()[i];
    y += added;
    b = unit.per_result * std::abs(y) + unit.per_norm * std::hypot(b, added) + unit.constant;
  }
  return value;
}

TapScore RankCase::compare(const LocalValue& value) const {
  std::vector<Comparison> one;
  one.emplace_back(op_.output(), 0, rank_, op_.rounds_once());
  compare_all(value, one);
  return one.front().scores().front();
}

void RankCase::find_wrong() {
  const TapScore score = compare(expected_);
  residual_ = Residual{score.a, score.b, score.c, score.limits};
  const std::int64_t rows = got_.rows(), cols = got_.cols();
  wrong_.rows.assign(static_cast<std::size_t>(rows), false);
  wrong_.cols.assign(static_cast<std::size_t>(cols), false);
  std::vector<double> row_squares(wrong_.rows.size()), col_squares(wrong_.cols.size());
  std::vector<std::int64_t> row_counts(wrong_.rows.size()), col_counts(wrong_.cols.size());
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t d = 0; d < cols; ++d) {
      if (!owned(m, d)) continue;
      const auto row = static_cast<std::size_t>(m), col = static_cast<std::size_t>(d);
      const double e = std::abs(got_(m, d) - expected_.y(m, d));
      const double ratio = got_(m, d) == expected_.y(m, d) ? 0.0 : e / budget(m, d);
      row_squares[row] += ratio * ratio;
      col_squares[col] += ratio * ratio;
      ++row_counts[row];
      ++col_counts[col];
      if (ratio <= score.limits.a) continue;
      ++wrong_.elements;
      wrong_.rows[row] = wrong_.cols[col] = true;
    }
  }
  const auto add_lines = [&](std::vector<bool>& flags, const std::vector<double>& squares,
                             const std::vector<std::int64_t>& counts) {
    for (std::size_t i = 0; i < flags.size(); ++i) {
      if (counts[i] < Statistics::kLeastForC) continue;
      if (!(std::sqrt(squares[i] / static_cast<double>(counts[i])) <= score.limits.c))
        flags[i] = true;
    }
  };
  add_lines(wrong_.rows, row_squares, row_counts);
  add_lines(wrong_.cols, col_squares, col_counts);
  const bool none = std::none_of(wrong_.rows.begin(), wrong_.rows.end(), [](bool b) { return b; });
  // Everything a little off: no line stands out.
  if (none) wrong_.rows.assign(wrong_.rows.size(), true);
  if (std::none_of(wrong_.cols.begin(), wrong_.cols.end(), [](bool b) { return b; }))
    wrong_.cols.assign(wrong_.cols.size(), true);
}

LocalValue RankCase::merged(const LocalValue& hypothesis, bool rows, bool cols) const {
  LocalValue value{expected_.y, F64Matrix(got_.rows(), got_.cols()), {}};
  for (std::int64_t m = 0; m < got_.rows(); ++m) {
    for (std::int64_t d = 0; d < got_.cols(); ++d) {
      const bool inside = (!rows || wrong_.rows[static_cast<std::size_t>(m)]) &&
                          (!cols || wrong_.cols[static_cast<std::size_t>(d)]);
      if (inside) value.y(m, d) = hypothesis.y(m, d);
      value.budget(m, d) = !inside                         ? budget(m, d)
                           : hypothesis.budget.rows() == 0 ? 0.0
                                                           : hypothesis.budget(m, d);
    }
  }
  return value;
}

std::optional<Residual> RankCase::fit(const LocalValue& hypothesis) const {
  if (!hypothesis.problem.empty() || hypothesis.y.rows() != got_.rows() ||
      hypothesis.y.cols() != got_.cols())
    return std::nullopt;
  for (const auto& [rows, cols] : {std::pair{false, false}, {true, false}, {true, true}}) {
    const TapScore score = compare(merged(hypothesis, rows, cols));
    if (score.passed()) return Residual{score.a, score.b, score.c, score.limits};
  }
  return std::nullopt;
}

std::string RankCase::where() const {
  const std::string rows = counted(wrong_.rows, "row");
  std::vector<bool> own;
  for (std::size_t d = 0; d < wrong_.cols.size(); ++d)
    own.push_back(wrong_.cols[d] && holds(features(), static_cast<std::int64_t>(d)));
  return fmt::format("{} wrong elements in {} of {}, {} of {}", wrong_.elements, rows, got_.rows(),
                     counted(own, "feature"), total(features()));
}

LocalValue scaled(const LocalValue& value, double factor, double roundoff) {
  LocalValue out{value.y, F64Matrix(value.y.rows(), value.y.cols()), {}};
  const bool exact = std::ldexp(1.0, std::ilogb(factor == 0.0 ? 1.0 : factor)) == std::abs(factor) ||
                     factor == 0.0;
  for (std::int64_t i = 0; i < out.y.rows() * out.y.cols(); ++i) {
    out.y.data()[i] *= factor;
    const double before = value.budget.rows() == 0 ? 0.0 : std::abs(factor) * value.budget.data()[i];
    out.budget.data()[i] = before + (exact ? 0.0 : roundoff * std::abs(out.y.data()[i]));
  }
  return out;
}

LocalValue plus(const LocalValue& a, double factor, const F64Matrix& b, double roundoff) {
  LocalValue out{a.y, F64Matrix(a.y.rows(), a.y.cols()), {}};
  for (std::int64_t i = 0; i < out.y.rows() * out.y.cols(); ++i) {
    const double added = factor * b.data()[i];
    out.y.data()[i] += added;
    const double before = a.budget.rows() == 0 ? 0.0 : a.budget.data()[i];
    out.budget.data()[i] = before + roundoff * (std::abs(out.y.data()[i]) + std::abs(added));
  }
  return out;
}

}  // namespace shardcheck
