// SPDX-License-Identifier: Apache-2.0
#include "harness/mistrust.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>

namespace shardcheck {
namespace {

constexpr std::int64_t kLeastEqual = 8;  // elements of two equal shards that are no coincidence

bool is_activation(const TapValue& tap) {
  const bool cache = tap.name.ends_with(".k_cache") || tap.name.ends_with(".v_cache");
  return !tap.layout.any_partial() && !tap.ranks.empty() && !cache && tap.name != "ids" &&
         tap.name != "positions";
}

// Numbers that are 0 (or -0) among elements [first, first + n).
std::int64_t zeros_in(const HostTensor& tensor, std::int64_t first, std::int64_t n) {
  const auto count = [&](auto zero, auto is_zero) {
    const auto values = tensor.as<decltype(zero)>().subspan(static_cast<std::size_t>(first),
                                                            static_cast<std::size_t>(n));
    return static_cast<std::int64_t>(std::count_if(values.begin(), values.end(), is_zero));
  };
  switch (tensor.dtype()) {
    case DType::f64:
      return count(double{}, [](double v) { return v == 0.0; });
    case DType::f32:
      return count(float{}, [](float v) { return v == 0.0F; });
    default:
      return count(std::uint16_t{}, [](std::uint16_t v) { return (v & 0x7fffu) == 0; });
  }
}

bool cut_by_features(const Layout& layout) { return !layout.owned.empty(); }

bool intersect(const Ranges& a, const Ranges& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(), [&](const Range& y) {
      return std::max(x.begin, y.begin) < std::min(x.end, y.end);
    });
  });
}

// The parts of a range that are in none of `taken`.
Ranges without(const Range& range, const Ranges& taken) {
  Ranges left{range};
  for (const Range& t : taken) {
    Ranges next;
    for (const Range& l : left) {
      if (l.begin < std::min(l.end, t.begin)) next.push_back({l.begin, std::min(l.end, t.begin)});
      if (std::max(l.begin, t.end) < l.end) next.push_back({std::max(l.begin, t.end), l.end});
    }
    left = next;
  }
  return left;
}

/// One tap over all steps that have it.
class Stack {
 public:
  Stack(const TapRun& run, const std::string& name) : run_(run), name_(name) {
    for (const StepTaps& step : run.steps) {
      if (const TapValue* tap = step.find(name); tap != nullptr) taps_.push_back(tap);
    }
  }

  const Layout& layout() const { return taps_.front()->layout; }

  std::optional<Mistrust> zeros() const {
    for (const std::vector<int>& group : wholes()) {
      std::int64_t zeros = 0, all = 0;
      for (const TapValue* tap : taps_) count_zeros(*tap, group, zeros, all);
      if (2 * zeros > all) {
        return Mistrust{name_, group.front(),
                        fmt::format("{} of {} numbers are exactly 0", zeros, all)};
      }
    }
    return std::nullopt;
  }

  std::optional<Mistrust> equal_shards() const {
    if (!cut_by_features(layout())) return std::nullopt;
    for (const std::vector<int>& group : wholes()) {
      for (std::size_t j = 0; j < group.size(); ++j) {
        for (std::size_t i = 0; i < j; ++i) {
          if (intersect(layout().feature_ranges(group[i]), layout().feature_ranges(group[j])))
            continue;
          if (shares_kv_head(group[i], group[j]) || !equal(group[i], group[j])) continue;
          return Mistrust{name_, group[i],
                          fmt::format("ranks {} and {} hold the same bytes for features {} and {}",
                                      group[i], group[j], to_string(layout().feature_ranges(group[i])),
                                      to_string(layout().feature_ranges(group[j])))};
        }
      }
    }
    return std::nullopt;
  }

  std::optional<Mistrust> constant_lines() const {
    if (!cut_by_features(layout()) || layout().features < 2) return std::nullopt;
    for (const std::vector<int>& group : wholes()) {
      bool any = false, constant = true;
      for (const TapValue* tap : taps_) constant = constant && lines_constant(*tap, group, any);
      if (any && constant) {
        return Mistrust{name_, group.front(), "every token's features are one number repeated"};
      }
    }
    return std::nullopt;
  }

 private:
  // Ranks that hold the value together, once per group: the axes that cut it vary, the others are fixed. Groups whose
  // parts are the same bytes are one.
  std::vector<std::vector<int>> wholes() const {
    std::vector<int> cut;
    for (std::size_t axis = 0; axis < layout().placements.size(); ++axis) {
      if (layout().placements[axis].kind == Placement::Kind::S)
        cut.push_back(static_cast<int>(axis));
    }
    std::vector<std::vector<int>> groups;
    std::set<std::vector<const void*>> seen;
    for (int rank = 0; rank < run_.mesh.ranks(); ++rank) {
      const std::vector<int> group = run_.mesh.group(rank, cut);
      if (group.front() != rank) continue;
      std::vector<const void*> bytes;
      for (const TapValue* tap : taps_) {
        for (const int member : group) bytes.push_back(part(*tap, member).data());
      }
      if (seen.insert(bytes).second) groups.push_back(group);
    }
    return groups;
  }

  static const HostTensor& part(const TapValue& tap, int rank) {
    return tap.ranks[static_cast<std::size_t>(rank)];
  }

  // Each element of the whole once: of what several ranks own, the earliest owner's.
  static void count_zeros(const TapValue& tap, const std::vector<int>& group, std::int64_t& zeros,
                          std::int64_t& all) {
    Ranges counted;
    for (const int rank : group) {
      const HostTensor& mine = part(tap, rank);
      if (mine.elements() == 0) continue;
      const Ranges features = tap.layout.feature_ranges(rank);
      if (total(features) != mine.cols()) continue;  // a forced plan's shape: judged elsewhere
      std::int64_t col = 0;
      for (const Range& range : features) {
        for (const Range& fresh : tap.layout.may_overlap ? without(range, counted) : Ranges{range}) {
          for (std::int64_t m = 0; m < mine.rows(); ++m) {
            zeros += zeros_in(mine, m * mine.cols() + col + fresh.begin - range.begin, fresh.size());
            all += fresh.size();
          }
        }
        col += range.size();
        counted.push_back(range);
      }
    }
  }

  bool equal(int a, int b) const {
    std::int64_t elements = 0;
    for (const TapValue* tap : taps_) {
      const HostTensor &x = part(*tap, a), &y = part(*tap, b);
      if (x.shape() != y.shape() || x.dtype() != y.dtype()) return false;
      if (x.elements() > 0 && std::memcmp(x.data(), y.data(), x.bytes()) != 0) return false;
      elements += x.elements();
    }
    return elements >= kLeastEqual;
  }

  // Where a query sees one key (a window or a prompt of one token), heads that one kv head serves come out alike.
  bool shares_kv_head(int a, int b) const {
    const bool out = name_.ends_with(".attn");
    const std::size_t end = out ? name_.size() - 4 : name_.find("o_proj.in");  // what is sliced of it
    if (end == std::string::npos) return false;
    const std::string cache = name_.substr(0, end) + "v_cache";
    for (const StepTaps& step : run_.steps) {
      const TapValue* v = step.find(cache);
      if (v == nullptr || (!out && v->layout.features >= layout().features)) continue;
      if (intersect(v->layout.feature_ranges(a), v->layout.feature_ranges(b))) return true;
    }
    return false;
  }

  // True if the ranks' parts of every token are one number; `any` if there was a token to look at.
  bool lines_constant(const TapValue& tap, const std::vector<int>& group, bool& any) const {
    if (!tap.layout.row_axes.empty()) return false;  // a rank's line may be another rank's token
    std::vector<std::optional<double>> first;
    for (const int rank : group) {
      const HostTensor& mine = part(tap, rank);
      const std::int64_t rows = mine.elements() == 0 ? 0 : mine.rows();
      first.resize(std::max(first.size(), static_cast<std::size_t>(rows)));
      for (std::int64_t m = 0; m < rows; ++m) {
        std::optional<double>& value = first[static_cast<std::size_t>(m)];
        for (std::int64_t d = 0; d < mine.cols(); ++d) {
          const double here = mine.at(m * mine.cols() + d);
          if (!value) value = here;
          if (*value != here) return false;
          any = true;
        }
      }
    }
    return true;
  }

  const TapRun& run_;
  std::string name_;
  std::vector<const TapValue*> taps_;
};

}  // namespace

std::vector<Mistrust> mistrusted_values(const TapRun& run) {
  std::vector<Mistrust> found;
  std::set<std::string, std::less<>> done;
  for (const StepTaps& step : run.steps) {
    for (const TapValue& tap : step.values) {
      if (!is_activation(tap) || !done.insert(tap.name).second) continue;
      const Stack stack(run, tap.name);
      for (std::optional<Mistrust> one : {stack.zeros(), stack.equal_shards(), stack.constant_lines()}) {
        if (one) found.push_back(std::move(*one));
      }
    }
  }
  return found;
}

std::vector<Mistrust> unchecked_values(std::span<const TapScore> scores) {
  std::vector<Mistrust> found;
  for (const TapScore& score : scores) {
    if (!score.unchecked) continue;
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const Mistrust& m) { return m.tap == score.tap; });
    if (!known) found.push_back({score.tap, score.rank, score.problem});
  }
  return found;
}

}  // namespace shardcheck
