// SPDX-License-Identifier: Apache-2.0
// Private to the judge: the instructions of a run, each with the steps that it is judged over, and the outputs' scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge.hpp"
#include "harness/judge_comparison.hpp"

namespace shardcheck {

/// One instruction over all steps that ran it: both phases' where the plan doesn't tell them apart.
struct Work {
  const Program* program = nullptr;
  const TapRun* run = nullptr;
  const Instruction* instruction = nullptr;
  std::vector<std::size_t> steps;  // of the run, ascending
  std::vector<int> inputs;  // values of the instruction's inputs that are taps (ids and positions are the step's)
  int order = 0;  // of the first output, in program order

  std::int64_t tokens() const;
  std::int64_t elements() const;  // of the outputs, about
  /// All steps up to the last judged one.
  std::vector<std::size_t> history() const;
  /// Rows of the module's weight that the rank's share of a partial output comes from; all rows if it isn't partial. What
  /// several ranks of the sum hold (kv heads) counts at the lowest of them.
  Ranges weight_rows(int rank) const;
};

/// In program order; an instruction that only one phase has stands where that phase has it.
std::vector<Work> work_of(const Program& program, const TapRun& run);

/// The outputs of one instruction and what was found out about them.
class OutputSet {
 public:
  /// A missing tap fails on every rank, or is passed over.
  OutputSet(const Work& work, bool may_be_missing);
  /// One output, in place of the instruction's own.
  OutputSet(const Work& work, const Value& output);

  /// No output is there to be judged.
  bool empty() const;
  const TapReader& reader(std::size_t output) const;
  /// Comparisons of one output for ranks that saw the same inputs: one for all ranks with the same bytes.
  std::vector<Comparison> comparisons(std::size_t output, const std::vector<int>& ranks,
                                      bool rounds_once) const;
  void take(const std::vector<Comparison>& done);
  void fail(int rank, const std::string& problem);
  void fail_all(const std::string& problem, bool unchecked);

  /// Sorted by output, then rank.
  std::vector<TapScore> scores() const;

 private:
  TapScore blank(const TapReader& reader, std::size_t output, int rank) const;

  const Work* work_;
  std::vector<TapReader> readers_;
  std::vector<TapScore> scores_;
};

/// Compares with a whole recomputed value, or says why that can't be done.
void compare_all(const LocalValue& value, std::vector<Comparison>& comparisons);

}  // namespace shardcheck
