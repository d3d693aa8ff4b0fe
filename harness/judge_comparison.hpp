// SPDX-License-Identifier: Apache-2.0
// Private to the judge: one rank's part of one value, over all judged steps, against its recomputation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/criterion.hpp"
#include "harness/judge.hpp"
#include "harness/judge_view.hpp"

namespace shardcheck {

class Comparison {
 public:
  /// `rounds_once`: the output is one rounding away from exact, so that A can't pass 1 but for the budget's own terms.
  /// `layout` is how the value is judged; it is the tap's own, or R where a partial was consumed as if it were whole.
  Comparison(TapReader reader, Layout layout, std::string tap, int order, int rank, bool rounds_once);

  /// Another rank that holds the very same bytes and is compared with the same numbers.
  void add_rank(int rank) { ranks_.push_back(rank); }
  int rank() const { return ranks_.front(); }
  const Ranges& features() const { return features_; }
  DType dtype() const { return reader_.dtype(); }
  bool comparable() const { return problem_.empty(); }
  void fail(std::string problem) { problem_ = std::move(problem); }
  void set_unchecked() { unchecked_ = true; }

  /// Columns [col, col + cols) of the whole value, all stacked rows: y and budget point to element (0, col) of row-major
  /// matrices. A null budget: nothing may differ.
  void compare(std::int64_t col, std::int64_t cols, const double* y, std::int64_t y_stride, const double* budget,
               std::int64_t budget_stride);

  /// One score per rank.
  std::vector<TapScore> scores() const;

 private:
  struct Row {
    std::size_t step;          // of the reader
    std::int64_t stacked;      // row of the recomputation
    std::int64_t global, local;  // row of the step's whole value, and of the rank's part
  };
  struct Segment {
    std::int64_t global, local, size;  // columns
  };

  TapReader reader_;
  Layout layout_;
  std::string tap_;
  int order_;
  std::vector<int> ranks_;
  Limits limits_;
  Ranges features_;
  std::vector<Row> rows_;
  std::vector<Segment> segments_;
  std::string problem_;
  bool unchecked_ = false;
  Statistics statistics_;
  std::vector<double> got_;
};

}  // namespace shardcheck
