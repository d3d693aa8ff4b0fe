// SPDX-License-Identifier: Apache-2.0
// Rows that were looked up: of a table by id or position, of the cache by position. Nothing is computed, so a row that is
// found elsewhere is found by its bits (but for a rounding to the wire's format).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/diagnose/hypothesis.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

bool holds(const Ranges& ranges, std::int64_t index) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [index](const Range& r) { return r.begin <= index && index < r.end; });
}

class TableRows {
 public:
  TableRows(const RankCase& rank, Explanations& found)
      : rank_(rank), module_(*rank.op().module()), found_(found), y_(rank.expected().y) {
    const auto at = rank.op().instruction().attributes.find("positions");
    positions_ = at != rank.op().instruction().attributes.end() && at->second != 0.0;
    for (const std::size_t s : rank.op().work().steps) {
      const Step& step = rank.op().run().steps[s].step;
      const std::vector<std::int64_t> here = positions_ ? step.positions() : step.ids;
      ids_.insert(ids_.end(), here.begin(), here.end());
    }
    own_ = rank.op().work().weight_rows(rank.rank());
  }

  void run() {
    if (static_cast<std::int64_t>(ids_.size()) != y_.rows()) return;
    find_sources();
    LocalValue value{y_, rank_.expected().budget, {}};
    std::int64_t missing = 0, extra = 0, others = 0, first = -1;
    std::map<std::int64_t, std::int64_t> distances;
    std::map<std::int64_t, std::int64_t> extra_distances;
    for (const auto& [m, source] : sources_) {
      if (source == kUnknown) return;
      if (first < 0) first = m;
      const auto row = static_cast<std::size_t>(m);
      if (source == kZero) {
        ++missing;
        std::fill(value.y.row(m).begin(), value.y.row(m).end(), 0.0);
        continue;
      }
      std::ranges::copy(rows_.at(source), value.y.row(m).begin());
      if (holds(own_, ids_[row])) {
        ++others;
        ++distances[source - ids_[row]];
      } else {
        ++extra;
        ++extra_distances[source - ids_[row]];
      }
    }
    if (sources_.empty()) return;
    const int r = rank_.rank();
    const std::string what = positions_ ? "position" : "id";
    const auto wrong_tokens = [&](std::string_view why) {
      found_.test(
          positions_ ? "wrong_positions" : "rows_of_wrong_token", value,
          fmt::format("rank {} gives entries of {} for another {} in {} rows, row {} the first{}",
                      r, module_.path, what, sources_.size(), first, why));
    };
    if (!positions_ && only_decode())
      return wrong_tokens(": all of them in decode steps, so the table itself is right");
    if (extra > 0 && missing + others == 0) {
      const bool own_entries = extra_distances.size() == 1 && extra_distances.begin()->first == 0;
      found_.test(
          own_entries ? "shard_doubled" : "rows_not_masked", value,
          own_entries
              ? fmt::format(
                    "rank {} gives {} entries of {} that another rank owns and gives as well", r,
                    extra, module_.path)
              : fmt::format("rank {} gives entries of {} for {} tokens whose {} it doesn't own, "
                            "such as row {}'s",
                            r, module_.path, extra, what, first));
      return;
    }
    if (missing > 0 && extra + others == 0) {
      found_.test("shard_dropped", value,
                  fmt::format("rank {} gives 0 for {} tokens whose {} it owns", r, missing, what));
      return;
    }
    // All entries as far off; at the border one may be missing, or another's be given.
    for (const auto& [by, count] : extra_distances) distances[by] += count;
    if (distances.size() != 1 || distances.begin()->first == 0) return wrong_tokens("");
    const std::int64_t by = distances.begin()->first;
    for (int other = 0; other < rank_.op().ranks() && !positions_; ++other) {
      const Ranges theirs = rank_.op().program().plan.rows_of(module_, other);
      if (theirs.empty() || own_.empty() || theirs == own_ ||
          theirs.front().begin - own_.front().begin != by)
        continue;
      found_.test("weight_of_wrong_rank", value,
                  fmt::format("rank {} looks up rank {}'s entries of {}", r, other, module_.path));
    }
    found_.test(positions_ ? "wrong_positions" : "weight_shifted", value,
                fmt::format("rank {} gives the entry of {} {}{} for {} tokens", r, what,
                            by > 0 ? "+" : "", by, others + extra));
  }

 private:
  /// The steps before them, and so the table, are right.
  bool only_decode() const {
    const std::vector<std::size_t>& steps = rank_.op().work().steps;
    std::int64_t before = 0;
    bool prefill = false;
    for (const std::size_t s : steps) {
      const Step& step = rank_.op().run().steps[s].step;
      for (std::int64_t m = 0; m < step.tokens(); ++m) {
        if (step.phase == Phase::prefill && sources_.count(before + m) != 0) return false;
      }
      prefill = prefill || step.phase == Phase::prefill;
      before += step.tokens();
    }
    return prefill;
  }

  static constexpr std::int64_t kZero = -1, kUnknown = -2;

  bool row_equals(std::int64_t m, std::span<const double> other) const {
    for (std::int64_t d = 0; d < y_.cols(); ++d) {
      if (!rank_.owned(m, d)) continue;
      const double entry = other.empty() ? 0.0 : other[static_cast<std::size_t>(d)];
      const bool exact = rank_.expected().budget.rows() == 0;
      const double allowed = exact ? 0.0
                                   : rank_.residual()->limits.a *
                                         (rank_.op().out_roundoff() * std::abs(entry) +
                                          half_min_subnormal(rank_.op().output().dtype()));
      if (!(std::abs(rank_.got()(m, d) - entry) <= allowed)) return false;
    }
    return true;
  }

  void find_sources() {
    for (std::int64_t m = 0; m < y_.rows(); ++m) {
      if (rank_.wrong().rows[static_cast<std::size_t>(m)] && !row_equals(m, rank_.expected().y.row(m)))
        sources_[m] = row_equals(m, {}) ? kZero : kUnknown;
    }
    // Entries near the right one first, then all.
    std::vector<double> entry(static_cast<std::size_t>(module_.in));
    for (std::int64_t id = 0; id < module_.out; ++id) {
      rank_.op().weights().read_rows(module_.weight(), id, id + 1, entry);
      for (auto& [m, source] : sources_) {
        if (source == kZero || !row_equals(m, entry)) continue;
        const std::int64_t wanted = ids_[static_cast<std::size_t>(m)];
        if (source != kUnknown && std::abs(source - wanted) <= std::abs(id - wanted)) continue;
        source = id;
        rows_[id] = entry;
      }
    }
  }

  const RankCase& rank_;
  const Module& module_;
  Explanations& found_;
  const F64Matrix& y_;
  bool positions_ = false;
  Ranges own_;
  std::vector<std::int64_t> ids_;
  std::map<std::int64_t, std::int64_t> sources_;  // wrong row -> entry
  std::map<std::int64_t, std::vector<double>> rows_;
};

/// Cache rows by where they come from: the position they should hold, and that which they hold.
void explain_cache(const RankCase& rank, Explanations& found) {
  const FailedOp& op = rank.op();
  const F64Matrix& got = rank.got();
  std::vector<std::string> words;
  bool earlier = true, other_side = true;
  LocalValue value{rank.expected().y, {}, {}};
  const auto side = static_cast<std::size_t>(op.output_index());
  std::int64_t wrong = 0;
  for (std::int64_t m = 0; m < got.rows(); ++m) {
    if (!rank.wrong().rows[static_cast<std::size_t>(m)]) continue;
    const auto is = [&](std::span<const double> row) {
      bool any = false;
      for (std::int64_t d = 0; d < got.cols(); ++d) {
        if (!rank.owned(m, d)) continue;
        any = true;
        if (got(m, d) != row[static_cast<std::size_t>(d)]) return false;
      }
      return any;
    };
    if (is(rank.expected().y.row(m))) continue;
    ++wrong;
    bool known = false;
    for (const std::size_t s : {side, 1 - side}) {
      const F64Matrix& x = rank.inputs()[s];
      for (std::int64_t from = x.rows() - 1; from >= 0 && !known; --from) {
        if (x.cols() != got.cols() || !is(x.row(from))) continue;
        known = true;
        std::ranges::copy(x.row(from), value.y.row(m).begin());
        other_side = other_side && s != side;
        earlier = earlier && s == side;
        if (words.size() < 2)
          words.push_back(fmt::format("row {} holds what {} was in row {} of the run", m,
                                      op.inputs()[s].name(), from));
      }
    }
    if (known) continue;
    bool zero = true;
    for (std::int64_t d = 0; d < got.cols(); ++d)
      zero = zero && (!rank.owned(m, d) || got(m, d) == 0.0);
    if (!zero) return;
    std::fill(value.y.row(m).begin(), value.y.row(m).end(), 0.0);
    if (words.size() < 2) words.push_back(fmt::format("row {} is 0", m));
    other_side = false;
  }
  if (wrong == 0) return;
  const std::string_view cause = other_side ? "permuted_sections"
                                 : earlier  ? "shard_stale"
                                            : "permuted_rows";
  found.test(cause, value,
             fmt::format("on rank {}, {} of {} cache rows are other tokens': {}", rank.rank(),
                         wrong, got.rows(), fmt::join(words, ", ")));
}

}  // namespace

void explain_lookups(const RankCase& rank, Explanations& found) {
  if (rank.op().op() == "embedding" && rank.op().module() != nullptr) TableRows(rank, found).run();
  if (rank.op().op() == "cache") explain_cache(rank, found);
}

}  // namespace shardcheck
