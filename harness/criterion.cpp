// SPDX-License-Identifier: Apache-2.0
#include "harness/criterion.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardcheck {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest root mean square among lines that are long enough; NaN if any line has one.
double largest_line(const std::vector<double>& squares, const std::vector<std::int64_t>& counts) {
  double largest = 0.0;
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (counts[i] < Statistics::kLeastForC) continue;
    const double mean_square = squares[i] / static_cast<double>(counts[i]);
    if (std::isnan(mean_square)) return mean_square;
    largest = std::max(largest, mean_square);
  }
  return std::sqrt(largest);
}

}  // namespace

Statistics::Statistics(std::int64_t rows, std::int64_t cols, double max_finite)
    : max_finite_(max_finite),
      row_squares_(static_cast<std::size_t>(rows)),
      col_squares_(static_cast<std::size_t>(cols)),
      row_counts_(static_cast<std::size_t>(rows)),
      col_counts_(static_cast<std::size_t>(cols)),
      previous_(static_cast<std::size_t>(cols)),
      previous_row_(static_cast<std::size_t>(cols), -1) {}

void Statistics::add(std::int64_t row, std::int64_t col, std::span<const double> got,
                     std::span<const double> expected, std::span<const double> budget) {
  const std::size_t n = got.size();
  if (n == 0) return;
  ratios_.resize(n);
  double* const ratio = ratios_.data();
  // Equal values are 0 whatever the budget; 0/0 can't arise, x/0 is infinite, NaN is never equal. Blends, no branches.
  if (budget.empty()) {
    for (std::size_t i = 0; i < n; ++i) {
      const double e = std::abs(got[i] - expected[i]);
      ratio[i] = got[i] == expected[i] ? 0.0 : e / 0.0;
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      const double e = std::abs(got[i] - expected[i]);
      ratio[i] = got[i] == expected[i] ? 0.0 : e / budget[i];
    }
  }
  double sum = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += ratio[i];
    largest = ratio[i] > largest ? ratio[i] : largest;
  }
  if (!(sum < kInfinity)) {  // something infinite or NaN: look at each element
    for (std::size_t i = 0; i < n; ++i) {
      add_exceptional(row, col + static_cast<std::int64_t>(i), got[i], expected[i],
                      budget.empty() ? 0.0 : budget[i], ratio[i]);
    }
    largest = 0.0;
    for (std::size_t i = 0; i < n; ++i) largest = ratio[i] > largest ? ratio[i] : largest;
  }
  if (largest > largest_ && !nan_) {
    const auto at = static_cast<std::size_t>(std::find(ratios_.begin(), ratios_.end(), largest) -
                                             ratios_.begin());
    largest_ = largest;
    worst_ = {row, col + static_cast<std::int64_t>(at), got[at], expected[at],
              budget.empty() ? 0.0 : budget[at]};
  }
  double row_sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    ratio[i] *= ratio[i];
    row_sum += ratio[i];
  }
  if (!repeats_row_before(row, col, got)) {
    double* const columns = col_squares_.data() + col;
    std::int64_t* const counts = col_counts_.data() + col;
    for (std::size_t i = 0; i < n; ++i) {
      columns[i] += ratio[i];
      ++counts[i];
    }
  }
  row_squares_[static_cast<std::size_t>(row)] += row_sum;
  row_counts_[static_cast<std::size_t>(row)] += static_cast<std::int64_t>(n);
  count_ += static_cast<std::int64_t>(n);
}

bool Statistics::repeats_row_before(std::int64_t row, std::int64_t col, std::span<const double> got) {
  const auto at = static_cast<std::size_t>(col);
  double* const before = previous_.data() + at;
  const bool follows = previous_row_[at] == row - 1 && row > 0;
  const bool repeats = follows && std::equal(got.begin(), got.end(), before);
  if (!repeats) std::copy(got.begin(), got.end(), before);
  previous_row_[at] = row;
  return repeats;
}

void Statistics::add_exceptional(std::int64_t row, std::int64_t col, double got, double expected,
                                 double budget, double& ratio) {
  if (std::isfinite(ratio)) return;
  // The f64 value, give or take the budget, is beyond the dtype: infinity of the same sign is right.
  const bool overflows = std::abs(expected) + budget > max_finite_;
  if (std::isinf(got) && overflows && std::signbit(got) == std::signbit(expected)) {
    ratio = 0.0;
    return;
  }
  if (!std::isfinite(expected)) expected_not_finite_ = true;
  if (!std::isfinite(got)) {
    got_not_finite_ = true;
    ratio = std::numeric_limits<double>::quiet_NaN();
  }
  if (std::isnan(ratio) && !nan_) {
    nan_ = true;
    worst_ = {row, col, got, expected, budget};
  }
}

double Statistics::a() const {
  return nan_ ? std::numeric_limits<double>::quiet_NaN() : std::max(largest_, 0.0);
}

double Statistics::b() const {
  if (count_ < kLeastForB) return 0.0;
  double sum = 0.0;
  for (const double square : row_squares_) sum += square;
  return std::sqrt(sum / static_cast<double>(count_));
}

double Statistics::c() const {
  const double rows = largest_line(row_squares_, row_counts_);
  const double cols = largest_line(col_squares_, col_counts_);
  if (std::isnan(rows) || std::isnan(cols)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(rows, cols);
}

}  // namespace shardcheck
