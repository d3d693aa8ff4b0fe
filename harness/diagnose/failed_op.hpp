// SPDX-License-Identifier: Apache-2.0
// Private to diagnoses: a failing op or collective as one rank saw it - its inputs, what it got, what it should have got
// and how far off each element may be - and the test of a hypothesis against it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/diagnose/diagnose.hpp"
#include "harness/judge_work.hpp"
#include "harness/local/local_op.hpp"

namespace shardcheck {

/// One rank's share of a sum, and the square of what it adds to the error budget.
struct Term {
  int rank = 0;
  F64Matrix value, variance;
};

/// y = sum of terms; b = per_result |y| + sqrt(sum of the terms' variances) + constant.
struct SumOfRanks {
  std::vector<Term> terms;   // of all ranks of the mesh whose share could be meant
  std::vector<int> members;  // ranks that the sum should run over
  double per_result = 0.0, constant = 0.0;
  double sent_roundoff = 0.0;  // of the format that shares are sent in
  bool maximum = false;        // the largest term instead of the sum
  std::vector<double> bias;    // added to the sum; empty: none

  const Term* of(int rank) const;
  /// factors[i] times terms[i], summed, plus the bias.
  LocalValue combine(const std::vector<double>& factors) const;
  std::vector<double> member_factors() const;
};

/// Everything that doesn't depend on the rank.
class FailedOp {
 public:
  FailedOp(const Model& model, const Failure& failure, const DiagnoseOptions& options);
  FailedOp(const FailedOp&) = delete;
  FailedOp& operator=(const FailedOp&) = delete;

  /// False if no instruction of the run makes this tap.
  bool found() const { return work_ != nullptr; }
  const Failure& failure() const { return failure_; }
  const Program& program() const { return *failure_.program; }
  const TapRun& run() const { return *failure_.run; }
  const Work& work() const { return *work_; }
  const Instruction& instruction() const { return *work_->instruction; }
  /// Name of the op; empty for a collective.
  std::string_view op() const;
  const Module* module() const { return module_; }  // whose weights it uses; null: none
  const RoundedWeights& weights() const { return weights_; }
  const LocalOp* local() const { return local_; }  // null for products and collectives
  const TapReader& output() const { return *output_; }
  int output_index() const { return output_index_; }
  Arithmetic arithmetic(Primitive primitive) const;
  bool rounds_once() const;
  double out_roundoff() const { return unit_roundoff(output_->dtype()); }
  const std::vector<TapReader>& inputs() const { return inputs_; }
  int ranks() const { return run().mesh.ranks(); }

  /// A tap of the run over given steps as `rank` holds it, whole as it sees it; nothing if it isn't there.
  std::optional<F64Matrix> value(std::string_view tap, const std::vector<std::size_t>& steps,
                                 int rank) const;

 private:
  const Failure& failure_;
  const DiagnoseOptions& options_;
  LocalOps builtin_;
  RoundedWeights weights_;
  std::vector<Work> works_;
  const Work* work_ = nullptr;
  const Module* module_ = nullptr;
  const LocalOp* local_ = nullptr;
  int output_index_ = 0;
  std::optional<TapReader> output_;
  std::vector<TapReader> inputs_;
};

/// Rows, then also columns, that a hypothesis may be confined to.
struct Region {
  std::vector<bool> rows, cols;
  std::int64_t elements = 0;  // that are wrong
};

class RankCase {
 public:
  RankCase(const FailedOp& op, int rank);

  const FailedOp& op() const { return op_; }
  int rank() const { return rank_; }
  /// Not empty: the case can't be looked into, and why.
  const std::string& problem() const { return problem_; }
  /// [rows, features] of the whole value; NaN outside of the rank's part.
  const F64Matrix& got() const { return got_; }
  const LocalValue& expected() const { return expected_; }
  double budget(std::int64_t row, std::int64_t col) const {
    return expected_.budget.rows() == 0 ? 0.0 : expected_.budget(row, col);
  }
  /// Inputs whole, as the rank saw them.
  const std::vector<F64Matrix>& inputs() const { return inputs_; }
  const SumOfRanks* sum() const { return sum_ ? &*sum_ : nullptr; }
  bool owned(std::int64_t row, std::int64_t col) const {
    return owned_[static_cast<std::size_t>(row * got_.cols() + col)];
  }
  Ranges features() const { return op_.output().layout().feature_ranges(rank_); }
  const Region& wrong() const { return wrong_; }
  /// Rows of one step: only these can be exchanged.
  bool same_step(std::int64_t a, std::int64_t b) const {
    return step_of_row_[static_cast<std::size_t>(a)] == step_of_row_[static_cast<std::size_t>(b)];
  }
  /// "12 of 14 rows, features 3 to 9".
  std::string where() const;

  /// Recomputes the op in another way: `change` alters the call (inputs, attributes, steps) before it is made.
  /// A problem, or an op without recomputation, gives nothing.
  using Change = std::function<void(LocalCall&, Instruction&, Config&)>;
  std::optional<LocalValue> recompute(const Change& change) const;
  /// A product like the op's own: of these columns of x and W, W of another module if given, and `biases` times the bias.
  std::optional<LocalValue> product(const Module& module, const Ranges& x_columns,
                                    const Ranges& w_columns, double biases) const;
  /// Columns of the weight that the op's product should run over.
  Ranges weight_columns() const;

  /// What is left if the hypothesis holds everywhere, or in the wrong rows, or in the wrong rows and columns; nothing if
  /// that doesn't pass the limits.
  std::optional<Residual> fit(const LocalValue& hypothesis) const;
  std::optional<Residual> residual() const { return residual_; }  // of no hypothesis at all

 private:
  void find_expected();
  void find_sum();
  void find_wrong();
  TapScore compare(const LocalValue& value) const;
  LocalValue merged(const LocalValue& hypothesis, bool rows, bool cols) const;

  const FailedOp& op_;
  int rank_;
  std::string problem_;
  F64Matrix got_;
  std::vector<bool> owned_;
  std::vector<std::size_t> step_of_row_;
  LocalValue expected_;
  std::vector<F64Matrix> inputs_;
  std::optional<SumOfRanks> sum_;
  Region wrong_;
  std::optional<Residual> residual_;
};

/// f times a value, rounded once more where that isn't exact.
LocalValue scaled(const LocalValue& value, double factor, double roundoff);
/// a + f b, rounded once more.
LocalValue plus(const LocalValue& a, double factor, const F64Matrix& b, double roundoff);

}  // namespace shardcheck
