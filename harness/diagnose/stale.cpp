// SPDX-License-Identifier: Apache-2.0
// Values of another time or place: an earlier step's, another layer's, or the op's own input, left in the buffer that should
// hold the result - or read by the op in place of its input, or put in a sum in place of a rank's share.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "harness/diagnose/hypothesis.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

class StaleHypotheses {
 public:
  StaleHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), op_(rank.op()), found_(found) {}

  void run() {
    not_applied();
    if (found_.has("not_applied")) return;  // another value may have its input's numbers
    const std::string& own = op_.output().name();
    if (const auto left = step_before(own, rank_.rank()))
      test(*left, fmt::format("rank {} holds {} of the step before", rank_.rank(), own));
    // Where the step before was stale itself, the one before that stood there: hold it against what it should have been.
    const LocalValue& y = rank_.expected();
    const auto before = moved_a_step(y.y);
    const auto budget = y.budget.rows() == y.y.rows()
                            ? moved_a_step(y.budget)
                            : std::optional(F64Matrix(y.y.rows(), y.y.cols()));
    if (before && budget)
      found_.test("shard_stale", {*before, *budget, {}},
                  fmt::format("rank {} holds {} of the step before", rank_.rank(), own));
    for (const std::string& tap : others_like(own)) {
      if (const auto other = op_.value(tap, op_.work().steps, rank_.rank()))
        test(*other, fmt::format("rank {} holds {}", rank_.rank(), tap));
    }
    stale_inputs();
    stale_shares();
  }

 private:
  void test(const F64Matrix& value, std::string sentence) {
    if (value.rows() != rank_.got().rows() || value.cols() != rank_.got().cols()) return;
    found_.test("shard_stale", {value, F64Matrix(value.rows(), value.cols()), {}}, std::move(sentence));
  }

  void not_applied() {
    if (op_.op().empty() || op_.op() == "cache") return;
    for (std::size_t i = 0; i < rank_.inputs().size(); ++i) {
      const F64Matrix& input = rank_.inputs()[i];
      if (input.rows() != rank_.got().rows() || input.cols() != rank_.got().cols()) continue;
      if (op_.op() == "add" || op_.op() == "bias") continue;  // a missing operand
      LocalValue same{input, F64Matrix(input.rows(), input.cols()), {}};
      found_.test(
          "not_applied", same,
          fmt::format("rank {} equals the op's input {}", rank_.rank(), op_.inputs()[i].name()));
    }
  }

  /// The value one step earlier, row by row; rows that the earlier step hasn't are NaN. Nothing where no two steps are of
  /// a size.
  std::optional<F64Matrix> step_before(const std::string& tap, int owner) const {
    const std::optional<F64Matrix> whole = op_.value(tap, op_.work().steps, owner);
    return whole ? moved_a_step(*whole) : std::nullopt;
  }
  std::optional<F64Matrix> moved_a_step(const F64Matrix& whole) const {
    const std::vector<std::size_t>& steps = op_.work().steps;
    F64Matrix moved(whole.rows(), whole.cols());
    std::fill_n(moved.data(), moved.rows() * moved.cols(), std::numeric_limits<double>::quiet_NaN());
    bool any = false;
    std::int64_t row = 0, before = 0, before_rows = 0;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const std::int64_t rows = op_.run().steps[steps[s]].step.tokens();
      if (row + rows > moved.rows()) return std::nullopt;  // not one row per token
      for (std::int64_t m = 0; m < rows && s > 0; ++m) {
        // A buffer for one token holds what was last in its place: the same row, or the last one.
        const std::int64_t from = rows <= before_rows ? before + before_rows - rows + m : -1;
        if (from < 0) continue;
        std::copy(whole.row(from).begin(), whole.row(from).end(), moved.row(row + m).begin());
        any = true;
      }
      before = row;
      before_rows = rows;
      row += rows;
    }
    if (row != whole.rows()) return std::nullopt;  // nor here: a cache
    return any ? std::optional(moved) : std::nullopt;
  }

  /// Earlier taps of as many features as `tap`: the same value of other layers first, then every other.
  std::vector<std::string> others_like(const std::string& tap) const {
    const auto without_layer = [](std::string name) {
      std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
      return name;
    };
    std::vector<std::string> names;
    std::set<std::string> seen{tap};  // the op's own inputs are another cause: it was skipped, or left one out
    for (const TapReader& input : op_.inputs()) seen.insert(input.name());
    for (const bool same : {true, false}) {
      for (const Instruction& instruction : op_.program().instructions.at(op_.failure().phase)) {
        if (instruction.site == op_.instruction().site)
          break;  // what comes later is made of the wrong value
        for (const int output : instruction.outputs) {
          const Value& value = op_.program().value(output);
          if (value.layout.features != op_.output().layout().features) continue;
          if (same != (without_layer(value.name) == without_layer(tap))) continue;
          if (seen.insert(value.name).second) names.push_back(value.name);
        }
      }
    }
    return names;
  }

  void stale_inputs() {
    if (op_.local() == nullptr) return;
    for (std::size_t i = 0; i < rank_.inputs().size() && i < op_.inputs().size(); ++i) {
      const std::string& tap = op_.inputs()[i].name();
      const auto with = [&](const F64Matrix& other, const std::string& words) {
        if (other.rows() != rank_.inputs()[i].rows() || other.cols() != rank_.inputs()[i].cols())
          return;
        const auto value = rank_.recompute(
            [&](LocalCall& call, Instruction&, Config&) { call.inputs[i] = other; });
        if (value) found_.test("shard_stale", *value, words);
      };
      if (!op_.local()->reads_history) {
        if (const auto before = step_before(tap, rank_.rank()))
          with(*before, fmt::format("rank {} computed with {} of the step before", rank_.rank(), tap));
      }
      for (const std::string& other : others_of_layers(tap)) {
        if (const auto value = op_.value(
                other, op_.local()->reads_history ? op_.work().history() : op_.work().steps,
                rank_.rank()))
          with(*value,
               fmt::format("rank {} computed with {} in place of {}", rank_.rank(), other, tap));
      }
    }
  }

  /// The same value in earlier layers.
  std::vector<std::string> others_of_layers(const std::string& tap) const {
    std::vector<std::string> names;
    const auto pattern = [](std::string name) {
      std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
      return name;
    };
    for (const Instruction& instruction : op_.program().instructions.at(op_.failure().phase)) {
      if (instruction.site == op_.instruction().site) break;
      for (const int output : instruction.outputs) {
        const std::string& name = op_.program().value(output).name;
        if (name != tap && pattern(name) == pattern(tap)) names.push_back(name);
      }
    }
    return names;
  }

  void stale_shares() {
    if (rank_.sum() == nullptr || !op_.op().empty() || rank_.sum()->members.size() < 2) return;
    const std::string& tap = op_.inputs().front().name();
    const std::vector<double> right = rank_.sum()->member_factors();
    for (std::size_t t = 0; t < rank_.sum()->terms.size(); ++t) {
      if (right[t] == 0.0) continue;
      const auto with = [&](const std::optional<F64Matrix>& other, const std::string& words) {
        if (!other || other->rows() != rank_.got().rows()) return;
        SumOfRanks sum = *rank_.sum();
        sum.terms[t].value = *other;
        found_.test("shard_stale", sum.combine(right), words);
      };
      const int owner = rank_.sum()->terms[t].rank;
      with(step_before(tap, owner),
           fmt::format("rank {} equals the sum with rank {}'s share of the step before",
                       rank_.rank(), owner));
      for (const std::string& other : others_of_layers(tap)) {
        with(op_.value(other, op_.work().steps, owner),
             fmt::format("rank {} equals the sum with rank {}'s share of {}", rank_.rank(), owner,
                         other));
      }
    }
  }
  const RankCase& rank_;
  const FailedOp& op_;
  Explanations& found_;
};

}  // namespace

void explain_stale(const RankCase& rank, Explanations& found) {
  StaleHypotheses(rank, found).run();
}

}  // namespace shardcheck
