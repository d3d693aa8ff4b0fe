// SPDX-License-Identifier: Apache-2.0
// Why an op's result is wrong: hypotheses that are tested on the numbers. Each proposes the values that its fault would
// give and explains the error if what is left passes the limits of gate G3 in units of the op's own error budget, in the
// precision that was run. No hypothesis has a tolerance of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/diagnose/causes.hpp"
#include "harness/judge.hpp"
#include "harness/run.hpp"
#include "kernels/device.hpp"
#include "model/model.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

class LocalOps;

/// What a cause leaves of the error: the statistics of gate G3, and their limits.
struct Residual {
  double a = 0.0, b = 0.0, c = 0.0;
  Limits limits;
};

/// A tap that is wrong, and the run that it is in.
struct Failure {
  const Program* program = nullptr;  // that the run is judged as
  const TapRun* run = nullptr;
  std::string tap;
  Phase phase = Phase::prefill;
  std::vector<int> ranks;  // that are wrong there; empty: all
};

struct DiagnoseOptions {
  /// The arithmetic that the candidate's device states; null: plain sums in the accumulate dtype.
  std::function<Arithmetic(Primitive, DType)> arithmetic;
  /// How each op is recomputed; null: builtin_local_ops().
  const LocalOps* ops = nullptr;
  /// Values that a candidate doesn't show don't count against it.
  bool taps_may_be_missing = false;
};

/// `name` is one of kCauses; "unexplained" where nothing fits.
struct Diagnosis {
  std::string name;
  std::string sentence;              // in words, with the evidence
  std::optional<Residual> residual;  // of the worst rank; none where bits or shapes are the evidence
  std::vector<std::string> also;  // other causes that explain the numbers as well, later in kCauses
};

/// The cause of a failing op or collective. Weights are `model`'s, rounded to the run's storage dtype.
Diagnosis diagnose(const Model& model, const Failure& failure, const DiagnoseOptions& options = {});

}  // namespace shardcheck
