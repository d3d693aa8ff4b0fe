// SPDX-License-Identifier: Apache-2.0
// Parts that were joined in another order than the ranks', and parts that were cut at another border than a section's.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "harness/diagnose/hypothesis.hpp"
#include "harness/judge_collective.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

class PartHypotheses {
 public:
  PartHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), found_(found), y_(rank.expected().y), cols_(y_.cols()), rows_(y_.rows()) {
    for (const Range& range : rank.features()) {
      for (std::int64_t d = range.begin; d < range.end; ++d) own_.push_back(d);
    }
  }

  void run() {
    if (own_.empty() || rows_ == 0) return;
    parts_in_another_order();
    section_of_input();
  }

 private:
  LocalValue moved_columns(const std::vector<std::int64_t>& right,
                           const std::vector<std::int64_t>& moved) const {
    LocalValue value{y_, F64Matrix(rows_, cols_), {}};
    for (std::int64_t m = 0; m < rows_; ++m) {
      for (std::size_t i = 0; i < right.size(); ++i) {
        value.y(m, right[i]) = y_(m, moved[i]);
        value.budget(m, right[i]) = rank_.budget(m, moved[i]);
      }
    }
    return value;
  }

  /// Gathered parts, as long as they are, one after the other in another order.
  void parts_in_another_order() {
    const FailedOp& op = rank_.op();
    if (!op.op().empty() || rank_.sum() != nullptr) return;
    const TapReader& input = op.inputs().front();
    const std::vector<int> group = collective_sources(op.work(), input, rank_.rank());
    std::vector<std::vector<std::size_t>> orders;
    std::vector<std::size_t> order(group.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    orders.emplace_back(order.rbegin(), order.rend());
    for (std::size_t by = 1; by < order.size(); ++by) {
      std::rotate(order.begin(), order.begin() + 1, order.end());
      orders.push_back(order);
      std::vector<std::size_t> pair(order.size());
      for (std::size_t i = 0; i < pair.size(); ++i) pair[i] = i;
      std::swap(pair[by - 1], pair[by]);
      orders.push_back(pair);
    }
    for (const std::vector<std::size_t>& parts : orders) {
      const std::string words = fmt::format("rank {} holds the parts of ranks {} in the order {}",
                                            rank_.rank(), fmt::join(group, ", "),
                                            fmt::join(parts, ", "));
      std::vector<std::int64_t> right, moved;
      const auto add_part = [&](std::vector<std::int64_t>& to, int giver) {
        for (const Range& range : input.layout().feature_ranges(giver)) {
          for (std::int64_t d = range.begin; d < range.end; ++d) to.push_back(d);
        }
      };
      for (std::size_t i = 0; i < group.size(); ++i) {
        add_part(right, group[i]);
        add_part(moved, group[parts[i]]);
      }
      if (static_cast<std::int64_t>(right.size()) == cols_) {
        if (found_.test("rows_of_wrong_rank", moved_columns(right, moved), words)) return;
      } else if (found_.test("rows_of_wrong_rank", rows_in_order(input, group, parts), words)) {
        return;
      }
    }
  }
  LocalValue rows_in_order(const TapReader& input, const std::vector<int>& group,
                           const std::vector<std::size_t>& parts) const {
    LocalValue value{y_, F64Matrix(rows_, cols_), {}};
    std::int64_t before = 0;
    for (std::size_t s = 0; s < input.steps(); ++s) {
      std::vector<std::int64_t> right, moved;
      const auto add_part = [&](std::vector<std::int64_t>& to, int giver) {
        for (const Range& range : input.row_ranges(s, giver)) {
          for (std::int64_t m = range.begin; m < range.end; ++m) to.push_back(before + m);
        }
      };
      for (std::size_t i = 0; i < group.size(); ++i) {
        add_part(right, group[i]);
        add_part(moved, group[parts[i]]);
      }
      for (std::size_t i = 0; i < right.size(); ++i) {
        std::ranges::copy(y_.row(moved[i]), value.y.row(right[i]).begin());
        for (std::int64_t d = 0; d < cols_; ++d)
          value.budget(right[i], d) = rank_.budget(moved[i], d);
      }
      before += input.rows(s);
    }
    return value;
  }

  /// A split that takes other features of its input than the section's.
  void section_of_input() {
    if (rank_.op().op() != "split" || rank_.inputs().empty()) return;
    const F64Matrix& x = rank_.inputs()[0];
    const auto at = rank_.op().instruction().attributes.find("begin");
    if (at == rank_.op().instruction().attributes.end()) return;
    const auto begin = static_cast<std::int64_t>(at->second);
    for (std::int64_t by = 1 - cols_; by < cols_; ++by) {
      if (by == 0) continue;
      LocalValue value{y_, {}, {}};
      for (std::int64_t m = 0; m < rows_; ++m) {
        for (const std::int64_t d : own_) {
          const std::int64_t source = begin + d + by;
          value.y(m, d) = source >= 0 && source < x.cols() ? x(m, source)
                                                           : std::numeric_limits<double>::quiet_NaN();
        }
      }
      if (found_.test("permuted_rows", value,
                      fmt::format("rank {} takes the features {} {} the section's", rank_.rank(),
                                  std::abs(by), by > 0 ? "after" : "before")))
        return;
    }
    // A rank's own part of the input, cut one element off its borders.
    std::vector<std::int64_t> held;
    for (const Range& range : rank_.op().inputs()[0].layout().feature_ranges(rank_.rank())) {
      for (std::int64_t d = range.begin; d < range.end; ++d) held.push_back(d);
    }
    const auto first = std::find(held.begin(), held.end(), begin + own_.front()) - held.begin();
    for (std::int64_t by = 1 - static_cast<std::int64_t>(own_.size());
         by < static_cast<std::int64_t>(own_.size()); ++by) {
      LocalValue value{y_, {}, {}};
      bool inside = by != 0;
      for (std::size_t i = 0; i < own_.size() && inside; ++i) {
        const std::int64_t local = first + static_cast<std::int64_t>(i) + by;
        inside = local >= 0 && local < static_cast<std::int64_t>(held.size());
        for (std::int64_t m = 0; m < rows_ && inside; ++m)
          value.y(m, own_[i]) = x(m, held[static_cast<std::size_t>(local)]);
      }
      if (inside &&
          found_.test("permuted_rows", value,
                      fmt::format("rank {} splits its part {} features {} the section's border",
                                  rank_.rank(), std::abs(by), by > 0 ? "after" : "before")))
        return;
    }
  }

  const RankCase& rank_;
  Explanations& found_;
  const F64Matrix& y_;
  std::int64_t cols_, rows_;
  std::vector<std::int64_t> own_;  // features of the rank, ascending
};

}  // namespace

void explain_parts(const RankCase& rank, Explanations& found) { PartHypotheses(rank, found).run(); }

}  // namespace shardcheck
