// SPDX-License-Identifier: Apache-2.0
// Private to the judge: one value of a run over several steps, read in f64 as a given rank saw it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/local/local_op.hpp"
#include "harness/run.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

/// Elements [first, first + out.size()) of a tensor, widened exactly.
void widen(const HostTensor& tensor, std::int64_t first, std::span<double> out);

/// The steps of a run that are judged together, and how many rows a value has in each.
class TapReader {
 public:
  TapReader(const TapRun& run, std::vector<std::size_t> steps, const Value& value);

  const std::string& name() const { return name_; }
  const TapRun& run() const { return *run_; }
  /// False if some step has no such tap, or no rank has it.
  bool present() const { return present_; }
  std::size_t steps() const { return taps_.size(); }
  const Step& step(std::size_t s) const { return run_->steps[steps_[s]].step; }
  const TapValue& tap(std::size_t s) const { return *taps_[s]; }
  std::int64_t rows(std::size_t s) const { return rows_[s]; }
  /// Rows of the step's whole value that a rank holds.
  Ranges row_ranges(std::size_t s, int rank) const;
  std::int64_t rows() const;
  const Layout& layout() const { return taps_.front()->layout; }
  DType dtype() const { return dtype_; }  // that the program gives it

  /// Empty, or why a rank's part can't be read: it has none, or shape or dtype are not those of its placement.
  std::string defect(int rank) const;

  /// Ranks whose parts make up what `rank` sees: its own first (where several own an element, its own copy is what it
  /// computed with), then the others of its group along the axes that cut the value.
  std::vector<int> seen_by(int rank) const;

  /// Equal keys: equal numbers. Made of the addresses of the parts, in the order of precedence.
  std::vector<const void*> key(const std::vector<int>& peers) const;

  /// The whole value [rows, features] from the peers' parts; the first peer that owns an element gives it. NaN where
  /// none does.
  F64Matrix assemble(const std::vector<int>& peers) const;

 private:
  const TapRun* run_;
  std::vector<std::size_t> steps_;
  std::string name_;
  DType dtype_;
  ValueRows kind_;
  std::int64_t window_;
  bool present_ = true;
  std::vector<const TapValue*> taps_;
  std::vector<std::int64_t> rows_;
};

}  // namespace shardcheck
