// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardcheck {
namespace {

// A 8, but 4 where the output's own rounding is nearly all of the budget.
Limits limits_of(DType out, bool rounds_once) {
  Limits limits;
  if (out == DType::bf16) limits.a = 4.0;
  if (rounds_once) limits.a = 1.01;
  return limits;
}

Statistics statistics_of(const TapReader& reader, int rank) {
  std::int64_t rows = 0;
  for (std::size_t s = 0; s < reader.steps(); ++s) {
    rows += total(reader.row_ranges(s, rank));
  }
  return {rows, total(reader.layout().feature_ranges(rank)), info(reader.dtype()).max_finite};
}

}  // namespace

Comparison::Comparison(TapReader reader, int order, int rank, bool rounds_once)
    : reader_(std::move(reader)),
      order_(order),
      ranks_{rank},
      limits_(limits_of(reader_.dtype(), rounds_once)),
      features_(reader_.layout().feature_ranges(rank)),
      problem_(reader_.defect(rank)),
      statistics_(statistics_of(reader_, rank)) {
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < reader_.steps(); ++s) {
    std::int64_t local = 0;
    for (const Range& tokens : reader_.row_ranges(s, rank)) {
      for (std::int64_t row = tokens.begin; row < tokens.end; ++row) {
        rows_.push_back({s, offset + row, row, local++});
      }
    }
    offset += reader_.rows(s);
  }
  std::int64_t local = 0;
  for (const Range& range : features_) {
    segments_.push_back({range.begin, local, range.size()});
    local += range.size();
  }
}

void Comparison::add_twin(int rank) {
  Twin twin{rank, {}, {}, statistics_of(reader_, this->rank()), statistics_of(reader_, this->rank())};
  std::int64_t at = 0;
  for (const Range& range : reader_.layout().feature_ranges(rank)) {
    for (const Segment& segment : segments_) {
      const std::int64_t begin = std::max(range.begin, segment.global);
      const std::int64_t end = std::min(range.end, segment.global + segment.size);
      if (begin >= end) continue;
      twin.shared.push_back({begin, segment.local + begin - segment.global, end - begin});
      twin.others.push_back(at + begin - range.begin);
    }
    at += range.size();
  }
  if (!twin.shared.empty() && comparable() && reader_.defect(rank).empty())
    twins_.push_back(std::move(twin));
}

void Comparison::compare(std::int64_t col, std::int64_t cols, const double* y,
                         std::int64_t y_stride, const double* budget, std::int64_t budget_stride) {
  if (!comparable()) return;
  for (const Segment& segment : segments_) {
    add_rows(statistics_, segment, col, cols, y, y_stride, budget, budget_stride, nullptr, 0);
  }
  for (Twin& twin : twins_) {
    for (std::size_t i = 0; i < twin.shared.size(); ++i) {
      add_rows(twin.statistics, twin.shared[i], col, cols, y, y_stride, budget, budget_stride,
               &twin, twin.others[i]);
    }
  }
}

// The columns of [col, col + cols) that are in the segment, all rows: against y, or against what the twin holds.
void Comparison::add_rows(Statistics& statistics, const Segment& segment, std::int64_t col,
                          std::int64_t cols, const double* y, std::int64_t y_stride,
                          const double* budget, std::int64_t budget_stride, Twin* twin,
                          std::int64_t other) {
  const std::int64_t begin = std::max(col, segment.global);
  const std::int64_t end = std::min(col + cols, segment.global + segment.size);
  if (begin >= end) return;
  const auto n = static_cast<std::size_t>(end - begin);
  const std::int64_t skipped = begin - segment.global;
  got_.resize(n);
  other_.resize(n);
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    const std::vector<HostTensor>& parts = reader_.tap(row.step).ranks;
    const HostTensor& part = parts[static_cast<std::size_t>(rank())];
    widen(part, row.local * part.cols() + segment.local + skipped, got_);
    std::span<const double> expected(y + row.stacked * y_stride + (begin - col), n);
    if (twin != nullptr) {
      const HostTensor& theirs = parts[static_cast<std::size_t>(twin->rank)];
      widen(theirs, row.local * theirs.cols() + other + skipped, other_);
    }
    std::span<const double> allowed;
    if (budget != nullptr) allowed = {budget + row.stacked * budget_stride + (begin - col), n};
    if (twin != nullptr) {
      twin->theirs.add(static_cast<std::int64_t>(i), segment.local + skipped, other_, expected, allowed);
      expected = other_;
    }
    statistics.add(static_cast<std::int64_t>(i), segment.local + skipped, got_, expected, allowed);
  }
}

std::vector<TapScore> Comparison::scores() const {
  TapScore score;
  score.tap = reader_.name();
  score.order = order_;
  score.limits = limits_;
  score.problem = problem_;
  if (comparable()) {
    score.a = statistics_.a();
    score.b = statistics_.b();
    score.c = statistics_.c();
    score.compared = statistics_.count();
    if (statistics_.not_finite()) {
      score.problem = "not finite";
    } else if (statistics_.expected_not_finite()) {
      score.problem = "can't be recomputed: its inputs are not finite";
    }
    Statistics::Worst worst = statistics_.worst();
    for (const Twin& twin : twins_) {
      // A twin that is wrong by itself is named itself, and no measure of this one.
      if (!(twin.theirs.a() <= limits_.a && twin.theirs.b() <= limits_.b)) continue;
      if (twin.statistics.a() > score.a) {
        score.a = twin.statistics.a();
        worst = twin.statistics.worst();
      }
      score.b = std::max(score.b, twin.statistics.b());
    }
    if (worst.row >= 0) {
      const Row& row = rows_[static_cast<std::size_t>(worst.row)];
      score.worst.phase = reader_.step(row.step).phase;
      score.worst.step = reader_.step(row.step).index;
      score.worst.row = row.global;
      score.worst.local_row = row.local;
      score.worst.local_feature = worst.col;
      for (const Segment& segment : segments_) {
        if (segment.local <= worst.col && worst.col < segment.local + segment.size) {
          score.worst.feature = segment.global + worst.col - segment.local;
        }
      }
      score.worst.got = worst.got;
      score.worst.expected = worst.expected;
    }
  }
  std::vector<TapScore> all;
  for (const int rank : ranks_) {
    score.rank = score.worst.rank = rank;
    all.push_back(score);
  }
  return all;
}

bool TapScore::passed() const {
  return problem.empty() && !unchecked && a <= limits.a && b <= limits.b && c <= limits.c;
}

double TapScore::margin() const {
  if (!problem.empty() || unchecked || std::isnan(a) || std::isnan(b) || std::isnan(c)) return 0.0;
  double smallest = std::numeric_limits<double>::infinity();
  if (a > 0.0) smallest = std::min(smallest, limits.a / a);
  if (b > 0.0) smallest = std::min(smallest, limits.b / b);
  if (c > 0.0) smallest = std::min(smallest, limits.c / c);
  return smallest;
}

}  // namespace shardcheck
