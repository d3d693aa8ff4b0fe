// SPDX-License-Identifier: Apache-2.0
// The three statistics of gate G3: how far a tensor is from its recomputation, in units of the error budget.
//
//   A  the largest |e_i| / b_i                       one wrong element
//   B  root mean square of e_i / b_i, whole tensor   everything a little wrong
//   C  the largest such root mean square over a row or a column     one token or one channel wrong
//
// They are means of ratios, not ratios of norms: one massive activation would decide a ratio of norms.
// e = 0 counts as 0 also where b = 0; e != 0 with b = 0 is infinite; NaN stays NaN, so that every limit fails.
// A token whose values are those of the token before it (a prompt that repeats one id) rounds the same way in every
// column: it is no new sample of a column, and is left out there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardcheck {

/// Collects e / b of one tensor, row piece by row piece, in any order.
class Statistics {
 public:
  /// B is judged from this many elements on, C on lines of at least this many.
  static constexpr std::int64_t kLeastForB = 256;
  static constexpr std::int64_t kLeastForC = 16;

  /// Of a [rows, cols] tensor whose dtype has this largest finite value.
  Statistics(std::int64_t rows, std::int64_t cols, double max_finite);

  /// Elements (row, col ...): what was got, what f64 gives, and how much may lie between. An empty `budget` is 0
  /// everywhere. A value beyond the dtype's range may be infinite: that is its correct rounding.
  void add(std::int64_t row, std::int64_t col, std::span<const double> got,
           std::span<const double> expected, std::span<const double> budget);

  /// The statistics of what was added; 0 where nothing, or too little, was.
  double a() const;
  double b() const;
  double c() const;

  std::int64_t count() const { return count_; }
  /// An element that is NaN, or infinite without need, was got.
  bool not_finite() const { return got_not_finite_; }
  /// The recomputation itself isn't finite: the op's inputs weren't.
  bool expected_not_finite() const { return expected_not_finite_; }

  /// The element of the largest |e| / b; the first NaN if there is one. row is -1 if nothing was added.
  struct Worst {
    std::int64_t row = -1, col = -1;
    double got = 0.0, expected = 0.0, budget = 0.0;
  };
  const Worst& worst() const { return worst_; }

 private:
  void add_exceptional(std::int64_t row, std::int64_t col, double got, double expected,
                       double budget, double& ratio);
  bool repeats_row_before(std::int64_t row, std::int64_t col, std::span<const double> got);

  double max_finite_;
  std::int64_t count_ = 0;
  double largest_ = -1.0;
  bool nan_ = false, got_not_finite_ = false, expected_not_finite_ = false;
  Worst worst_;
  std::vector<double> row_squares_, col_squares_;
  std::vector<std::int64_t> row_counts_, col_counts_;
  std::vector<double> ratios_;              // of the piece being added
  std::vector<double> previous_;            // by column: the values of the row before
  std::vector<std::int64_t> previous_row_;  // by first column of a piece
};

}  // namespace shardcheck
