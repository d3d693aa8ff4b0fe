// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/value_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/end_to_end.hpp"
#include "kernels/field/residue.hpp"

namespace shardcheck {
namespace {

/// Poison is equal to nothing, as NaN is.
struct FieldNumbers {
  using Number = field::Residue;
  static bool same(Number a, Number b, double) { return a == b && !a.poisoned(); }
  static double size(Number) { return 0.0; }
};

struct RealNumbers {
  using Number = double;
  static bool same(Number a, Number b, double limit) { return std::abs(a - b) <= limit; }
  static double size(Number a) { return std::abs(a); }
};

/// Global index of the local one.
std::int64_t global_index(const Ranges& ranges, std::int64_t local) {
  for (const Range& range : ranges) {
    if (local < range.size()) return range.begin + local;
    local -= range.size();
  }
  return -1;
}

/// One value of one step.
template <typename Numbers>
class ValueComparison {
 public:
  using Number = typename Numbers::Number;

  ValueComparison(const Value& value, const std::vector<HostTensor>& parts, const Mesh& mesh,
                  std::span<const Step* const> steps)
      : value_(value), parts_(parts), mesh_(mesh), steps_(steps) {
    for (std::size_t axis = 0; axis < value.layout.placements.size(); ++axis) {
      const Placement& placement = value.layout.placements[axis];
      if (placement.is_partial()) summed_.push_back(static_cast<int>(axis));
      if (placement.kind == Placement::Kind::R) replicated_.push_back(static_cast<int>(axis));
      maximum_ = maximum_ || placement.kind == Placement::Kind::P_max;
    }
  }

  /// `expected` null: the unsharded program has no such value, and replicas are compared with the first of them.
  std::optional<RunDifference> compare(const HostTensor* expected) {
    if (std::optional<RunDifference> misshapen = shapes(expected)) return misshapen;
    if (std::optional<RunDifference> lost = uncovered()) return lost;
    if (expected == nullptr && !summed_.empty()) return std::nullopt;
    std::optional<RunDifference> first;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      const std::vector<int> group = mesh_.group(rank, summed_);
      if (group.front() != rank) continue;  // its sum was compared with the first's
      const HostTensor got = summed_.empty() ? part(rank) : sum(group);
      const HostTensor wanted = expected != nullptr ? part_of(*expected, rows(rank), features(rank))
                                                    : part(mesh_.group(rank, replicated_).front());
      const std::int64_t at = first_difference(got, wanted, limit(group, expected));
      if (at < 0) continue;
      if (!first) {
        first.emplace();
        first->tap = value_.name;
        first->row = global_index(rows(rank), at / got.cols());
        first->feature = global_index(features(rank), at % got.cols());
      }
      first->ranks.insert(first->ranks.end(), group.begin(), group.end());
    }
    if (first) std::sort(first->ranks.begin(), first->ranks.end());
    return first;
  }

 private:
  const HostTensor& part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  Ranges rows(int rank) const { return held_rows(value_, mesh_, rank, steps_); }
  Ranges features(int rank) const { return value_.layout.feature_ranges(rank); }

  std::optional<RunDifference> shapes(const HostTensor* expected) const {
    std::optional<RunDifference> wrong;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      if (expected != nullptr &&
          (outside(rows(rank), expected->rows()) || outside(features(rank), expected->cols()))) {
        if (!wrong) {
          wrong.emplace();
          wrong->tap = value_.name;
          wrong->problem = fmt::format("rank {} holds rows {} and features {} of a value of {}",
                                       rank, to_string(rows(rank)), to_string(features(rank)),
                                       to_string(expected->shape()));
        }
        wrong->ranks.push_back(rank);
        continue;
      }
      const std::vector<std::int64_t> needed{total(rows(rank)), total(features(rank))};
      if (part(rank).shape() == needed) continue;
      if (!wrong) {
        wrong.emplace();
        wrong->tap = value_.name;
        wrong->problem = fmt::format("rank {} has {}, its part is {}", rank,
                                     to_string(part(rank).shape()), to_string(needed));
      }
      wrong->ranks.push_back(rank);
    }
    return wrong;
  }

  /// Features that no rank holds: what they have is right, and the value isn't whole.
  std::optional<RunDifference> uncovered() const {
    Ranges held;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      const Ranges mine = features(rank);
      held.insert(held.end(), mine.begin(), mine.end());
    }
    held = normalized(std::move(held));
    if (total(held) == value_.layout.features) return std::nullopt;
    Ranges lost{{0, value_.layout.features}};
    for (const Range& range : held) lost = without(lost, range);
    RunDifference difference;
    difference.tap = value_.name;
    difference.problem = fmt::format("no rank holds features {}", to_string(lost));
    for (int rank = 0; rank < mesh_.ranks(); ++rank) difference.ranks.push_back(rank);
    return difference;
  }

  static bool outside(const Ranges& ranges, std::int64_t extent) {
    return std::any_of(ranges.begin(), ranges.end(), [extent](const Range& range) {
      return range.begin < 0 || range.begin > range.end || range.end > extent;
    });
  }

  HostTensor sum(const std::vector<int>& group) const {
    HostTensor result(part(group[0]).dtype(), part(group[0]).shape());
    const auto out = result.template as_mutable<Number>();
    for (std::size_t member = 0; member < group.size(); ++member) {
      const auto term = part(group[member]).template as<Number>();
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = member == 0 ? term[i] : maximum_ ? std::max(out[i], term[i]) : out[i] + term[i];
    }
    return result;
  }

  /// What f64 may differ by: a share of the largest number there is.
  double limit(const std::vector<int>& group, const HostTensor* expected) const {
    double largest = expected != nullptr ? size(*expected) : 0.0;
    for (const int rank : group) largest = std::max(largest, size(part(rank)));
    return kG2Limit * largest;
  }
  static double size(const HostTensor& tensor) {
    double largest = 0.0;
    for (const Number x : tensor.template as<Number>())
      largest = std::max(largest, Numbers::size(x));
    return largest;
  }

  static std::int64_t first_difference(const HostTensor& got, const HostTensor& wanted, double limit) {
    const auto a = got.template as<Number>(), b = wanted.template as<Number>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!Numbers::same(a[i], b[i], limit)) return static_cast<std::int64_t>(i);
    }
    return -1;
  }

  const Value& value_;
  const std::vector<HostTensor>& parts_;
  const Mesh& mesh_;
  std::span<const Step* const> steps_;
  std::vector<int> summed_, replicated_;  // axes
  bool maximum_ = false;
};

template <typename Number>
HostTensor expected_in(const Counterpart& counterpart, const HostTensor& tap, WeightStore& weights) {
  if (counterpart.square_sum) {
    HostTensor result(tap.dtype(), {tap.rows(), 1});
    const auto in = tap.as<Number>();
    const auto out = result.as_mutable<Number>();
    for (std::size_t i = 0; i < in.size(); ++i) {
      Number& square_sum = out[i / static_cast<std::size_t>(tap.cols())];
      square_sum = square_sum + in[i] * in[i];
    }
    return result;
  }
  if (counterpart.without.empty()) return tap;
  HostTensor result(tap.dtype(), tap.shape());
  const HostTensor bias = weights.whole(counterpart.without);
  const auto in = tap.as<Number>(), less = bias.as<Number>();
  const auto out = result.as_mutable<Number>();
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] - less[i % less.size()];
  return result;
}

}  // namespace

HostTensor part_of(const HostTensor& whole, const Ranges& rows, const Ranges& cols) {
  HostTensor part(whole.dtype(), {total(rows), total(cols)});
  const auto element = static_cast<std::int64_t>(element_size(whole.dtype()));
  std::byte* out = part.mutable_data();
  for (const Range& row_range : rows) {
    for (std::int64_t row = row_range.begin; row < row_range.end; ++row) {
      for (const Range& col_range : cols) {
        out = std::copy_n(whole.data() + (row * whole.cols() + col_range.begin) * element,
                          col_range.size() * element, out);
      }
    }
  }
  return part;
}

HostTensor expected_value(const Counterpart& counterpart, const StepTaps& whole, WeightStore& weights) {
  const HostTensor& tap = whole.find(counterpart.tap)->ranks[0];
  return tap.dtype() == DType::field ? expected_in<field::Residue>(counterpart, tap, weights)
                                     : expected_in<double>(counterpart, tap, weights);
}

std::optional<RunDifference> compare_value(const Value& value, const std::vector<HostTensor>& parts,
                                           const Mesh& mesh, std::span<const Step* const> steps,
                                           const HostTensor* expected) {
  const bool over_field = std::any_of(parts.begin(), parts.end(), [](const HostTensor& part) {
    return part.dtype() == DType::field;
  });
  return over_field ? ValueComparison<FieldNumbers>(value, parts, mesh, steps).compare(expected)
                    : ValueComparison<RealNumbers>(value, parts, mesh, steps).compare(expected);
}

bool same_numbers(const HostTensor& a, const HostTensor& b) {
  if (a.shape() != b.shape() || a.dtype() == DType::field) return a.bitwise_equal(b);
  const auto x = a.as<double>(), y = b.as<double>();
  double largest = 0.0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!RealNumbers::same(x[i], y[i], kG2Limit * largest)) return false;
  }
  return true;
}

}  // namespace shardcheck
