// SPDX-License-Identifier: Apache-2.0
// Gate G3: every op of a run is recomputed in f64 from the candidate's own inputs and the whole weights, and the
// difference is measured in units of a derived error budget.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/run.hpp"
#include "kernels/device.hpp"
#include "model/model.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

class LocalOps;

/// Limits of the three statistics; A is the largest |e|/b, B the root mean square of e/b over the tensor (judged from
/// 256 elements on), C the largest such value over a row or column (of at least 16 elements).
struct Limits {
  double a = 8.0, b = 0.7, c = 1.5;
};

/// One element of a tap: where it is and what it should have been.
struct Element {
  Phase phase = Phase::prefill;
  int step = 0;
  int rank = 0;
  std::int64_t row = 0, feature = 0;              // in the whole value
  std::int64_t local_row = 0, local_feature = 0;  // in the rank's part
  double got = 0.0, expected = 0.0;
};

/// The verdict on one tap of one rank, over all steps of the run.
struct TapScore {
  std::string tap;
  int order = 0;  // position in program order; the first failing tap is the smallest (order, rank)
  int rank = 0;
  double a = 0.0, b = 0.0, c = 0.0;
  Limits limits;
  Element worst;  // element of the largest |e|/b
  std::string problem;  // empty, or what made a comparison impossible: "not finite", "has shape [..], needs [..]"
  bool unchecked = false;  // the op has no entry in harness/local: the cell is mistrusted, never passed
  std::int64_t compared = 0;
  bool passed() const;  // written so that NaN fails
  double margin() const;  // smallest of limit / measured; infinity when nothing differs; 0 if it can't be judged
};

/// A run and the program whose taps it holds.
struct JudgeCell {
  const Program* program = nullptr;
  const TapRun* run = nullptr;
};

struct JudgeOptions {
  /// The arithmetic that the candidate's device states.
  std::function<Arithmetic(Primitive, DType)> arithmetic;
  /// Called with the fraction done, for progress on a terminal.
  std::function<void(double)> progress;
  /// Taps a candidate doesn't have are passed over (compare --candidate) instead of failing.
  bool taps_may_be_missing = false;
  /// How each op is recomputed; null: builtin_local_ops().
  const LocalOps* ops = nullptr;
  /// Threads that share the work. The scores don't depend on it.
  int threads = 2;
};

/// Scores of each cell, in program order. All cells share one storage dtype, so that a block of weight rows is read,
/// rounded and widened once for all of them.
std::vector<std::vector<TapScore>> judge_local(const Model& model, std::span<const JudgeCell> cells,
                                               const JudgeOptions& options);

}  // namespace shardcheck
