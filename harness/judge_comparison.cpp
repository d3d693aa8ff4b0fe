// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace shardcheck {
namespace {

// Of Tap scores: 8, but 4 where the output's own rounding is nearly all of the budget.
Limits limits_of(DType out, bool rounds_once) {
  Limits limits;
  if (out == DType::bf16) limits.a = 4.0;
  if (rounds_once) limits.a = 1.01;
  return limits;
}

Statistics statistics_of(const TapReader& reader, const Layout& layout, int rank) {
  std::int64_t rows = 0;
  for (std::size_t s = 0; s < reader.steps(); ++s) {
    rows += total(layout.token_ranges(reader.run().mesh, rank, reader.rows(s)));
  }
  return {rows, total(layout.feature_ranges(rank)), info(reader.dtype()).max_finite};
}

}  // namespace

Comparison::Comparison(TapReader reader, Layout layout, std::string tap, int order, int rank, bool rounds_once)
    : reader_(std::move(reader)),
      layout_(std::move(layout)),
      tap_(std::move(tap)),
      order_(order),
      ranks_{rank},
      limits_(limits_of(reader_.dtype(), rounds_once)),
      features_(layout_.feature_ranges(rank)),
      problem_(reader_.defect(rank)),
      statistics_(statistics_of(reader_, layout_, rank)) {
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < reader_.steps(); ++s) {
    std::int64_t local = 0;
    for (const Range& tokens : layout_.token_ranges(reader_.run().mesh, rank, reader_.rows(s))) {
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

void Comparison::compare(std::int64_t col, std::int64_t cols, const double* y, std::int64_t y_stride,
                         const double* budget, std::int64_t budget_stride) {
  if (!comparable()) return;
  const std::int64_t width = total(features_);
  for (const Segment& segment : segments_) {
    const std::int64_t begin = std::max(col, segment.global);
    const std::int64_t end = std::min(col + cols, segment.global + segment.size);
    if (begin >= end) continue;
    const auto n = static_cast<std::size_t>(end - begin);
    const std::int64_t local_col = segment.local + begin - segment.global;
    got_.resize(n);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      const HostTensor& part = reader_.tap(row.step).ranks[static_cast<std::size_t>(rank())];
      widen(part, row.local * width + local_col, got_);
      const std::span<const double> expected(y + row.stacked * y_stride + (begin - col), n);
      std::span<const double> allowed;
      if (budget != nullptr) allowed = {budget + row.stacked * budget_stride + (begin - col), n};
      statistics_.add(static_cast<std::int64_t>(i), local_col, got_, expected, allowed);
    }
  }
}

std::vector<TapScore> Comparison::scores() const {
  TapScore score;
  score.tap = tap_;
  score.order = order_;
  score.limits = limits_;
  score.problem = problem_;
  score.unchecked = unchecked_;
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
    const Statistics::Worst& worst = statistics_.worst();
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
