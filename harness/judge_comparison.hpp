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
  Comparison(TapReader reader, int order, int rank, bool rounds_once);

  /// Another rank that holds the very same bytes and is compared with the same numbers.
  void add_rank(int rank) { ranks_.push_back(rank); }
  int rank() const { return ranks_.front(); }
  /// Another rank that computed some of the same features from the same input, in a matrix of another shape: what both
  /// hold is compared too, by A and B with the same budget.
  void add_twin(int rank);
  const Ranges& features() const { return features_; }
  const TapReader& reader() const { return reader_; }
  DType dtype() const { return reader_.dtype(); }
  bool comparable() const { return problem_.empty(); }
  void fail(std::string problem) { problem_ = std::move(problem); }

  /// Columns [col, col + cols) of the whole value, all stacked rows: y and budget point to element (0, col) of
  /// row-major matrices. A null budget: nothing may differ.
  void compare(std::int64_t col, std::int64_t cols, const double* y, std::int64_t y_stride,
               const double* budget, std::int64_t budget_stride);

  /// One score per rank.
  std::vector<TapScore> scores() const;

 private:
  struct Row {
    std::size_t step;            // of the reader
    std::int64_t stacked;        // row of the recomputation
    std::int64_t global, local;  // row of the step's whole value, and of the rank's part
  };
  struct Segment {
    std::int64_t global, local, size;  // columns
  };
  struct Twin {
    int rank;
    std::vector<Segment> shared;       // columns of this rank's part
    std::vector<std::int64_t> others;  // where they begin in the other's
    Statistics statistics;             // this rank's against the other's
    Statistics theirs;                 // the other's against the recomputation
  };

  void add_rows(Statistics& statistics, const Segment& segment, std::int64_t col, std::int64_t cols,
                const double* y, std::int64_t y_stride, const double* budget,
                std::int64_t budget_stride, Twin* twin, std::int64_t other);

  TapReader reader_;
  int order_;
  std::vector<int> ranks_;
  Limits limits_;
  Ranges features_;
  std::vector<Row> rows_;
  std::vector<Segment> segments_;
  std::string problem_;
  Statistics statistics_;
  std::vector<Twin> twins_;
  std::vector<double> got_, other_;
};

}  // namespace shardcheck
