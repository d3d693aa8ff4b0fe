// SPDX-License-Identifier: Apache-2.0
// Which ranks' shares a sum was made of: one rank's alone, all but one, one twice, another group's, the largest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/hypothesis.hpp"
#include "harness/judge_collective.hpp"

namespace shardcheck {
namespace {

constexpr std::size_t kMostForSubsets = 8;  // ranks of which every subset is tried

std::string what_is_summed(const RankCase& rank) {
  const FailedOp& op = rank.op();
  if (op.op().empty()) return op.inputs().front().name();
  return fmt::format("the product with its columns of {}.weight", op.instruction().module);
}

class SumHypotheses {
 public:
  SumHypotheses(const RankCase& rank, Explanations& found)
      : rank_(rank), sum_(*rank.sum()), found_(found), right_(sum_.member_factors()) {}

  void run() {
    one_rank();
    one_missing_or_doubled();
    if (sum_.members.size() > 1) {
      other_groups();
      maximum();
    } else {
      whole_in_a_share();
    }
  }

 private:
  bool test(std::string_view cause, const std::vector<double>& factors, std::string sentence) {
    if (factors == right_) return false;
    return found_.test(cause, sum_.combine(factors), std::move(sentence));
  }
  std::vector<double> only(std::size_t term) const {
    std::vector<double> factors(right_.size(), 0.0);
    factors[term] = 1.0;
    return factors;
  }

  void one_rank() {
    std::vector<std::size_t> order;  // this rank's own first
    for (std::size_t t = 0; t < right_.size(); ++t) order.push_back(t);
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return (sum_.terms[a].rank == rank_.rank()) > (sum_.terms[b].rank == rank_.rank());
    });
    for (const std::size_t t : order) {
      const int owner = sum_.terms[t].rank;
      if (sum_.members.size() > 1) {
        test("one_ranks_partial", only(t),
             owner == rank_.rank()
                 ? fmt::format("rank {} has its own share alone, {}", owner, what_is_summed(rank_))
                 : fmt::format("rank {} has rank {}'s share alone, {}", rank_.rank(), owner,
                               what_is_summed(rank_)));
      } else {
        test("rows_of_wrong_rank", only(t),
             fmt::format("rank {}'s share equals rank {}'s", rank_.rank(), owner));
      }
    }
  }

  void one_missing_or_doubled() {
    if (sum_.members.size() < 2) return;
    for (std::size_t t = 0; t < right_.size(); ++t) {
      if (right_[t] == 0.0) continue;
      const int owner = sum_.terms[t].rank;
      std::vector<double> factors = right_;
      factors[t] = 0.0;
      test("shard_dropped", factors,
           fmt::format("rank {} equals the sum without rank {}'s share", rank_.rank(), owner));
      factors[t] = 2.0;
      test("shard_doubled", factors,
           fmt::format("rank {} equals the sum with rank {}'s share counted twice", rank_.rank(),
                       owner));
      for (std::size_t other = 0; other < right_.size(); ++other) {
        if (other == t || right_[other] == 0.0) continue;
        factors[other] = 0.0;
        test("shard_doubled", factors,
             fmt::format("rank {} equals the sum with rank {}'s share in place of rank {}'s",
                         rank_.rank(), owner, sum_.terms[other].rank));
        factors[other] = 1.0;
      }
    }
  }

  void other_groups() {
    std::vector<std::vector<double>> groups;
    if (right_.size() <= kMostForSubsets) {
      for (std::size_t bits = 1; bits < (std::size_t{1} << right_.size()); ++bits) {
        std::vector<double> factors;
        for (std::size_t t = 0; t < right_.size(); ++t)
          factors.push_back((bits >> t) & 1u ? 1.0 : 0.0);
        if (std::count(factors.begin(), factors.end(), 1.0) > 1)
          groups.push_back(std::move(factors));
      }
    } else {
      const Mesh& mesh = rank_.op().run().mesh;
      for (std::size_t bits = 1; bits < (std::size_t{1} << mesh.axes.size()); ++bits) {
        std::vector<int> axes;
        for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
          if ((bits >> axis) & 1u) axes.push_back(static_cast<int>(axis));
        }
        groups.push_back(factors_of(mesh.group(rank_.rank(), axes)));
      }
    }
    for (const std::vector<double>& factors : groups) {
      if (found_.has("shard_dropped")) return;
      test("reduced_over_wrong_group", factors,
           fmt::format("rank {} equals the sum over ranks {}; its group is {}", rank_.rank(),
                       fmt::join(ranks_of(factors), ", "), fmt::join(sum_.members, ", ")));
    }
  }
  std::vector<double> factors_of(const std::vector<int>& ranks) const {
    std::vector<double> factors;
    for (const Term& term : sum_.terms)
      factors.push_back(std::find(ranks.begin(), ranks.end(), term.rank) != ranks.end() ? 1.0 : 0.0);
    return factors;
  }
  std::vector<int> ranks_of(const std::vector<double>& factors) const {
    std::vector<int> ranks;
    for (std::size_t t = 0; t < factors.size(); ++t) {
      if (factors[t] != 0.0) ranks.push_back(sum_.terms[t].rank);
    }
    return ranks;
  }

  void maximum() {
    SumOfRanks other = sum_;
    other.maximum = !sum_.maximum;
    found_.test("reduced_as_maximum", other.combine(right_),
                other.maximum ? "equals the largest of the ranks' shares in place of their sum"
                              : "equals the sum of the ranks' shares in place of the largest");
  }

  /// A share that holds the sum of all: what adds the shares up counts it once per rank.
  void whole_in_a_share() {
    if (!rank_.op().output().layout().any_partial()) return;
    const std::vector<double> all(right_.size(), 1.0);
    test("factor_tp", all,
         fmt::format("rank {}'s share holds the whole sum already, so that the sum of the shares "
                     "is {} times too large",
                     rank_.rank(), right_.size()));
  }

  const RankCase& rank_;
  const SumOfRanks& sum_;
  Explanations& found_;
  std::vector<double> right_;
};

std::vector<std::int64_t> features_of(const TapReader& value, int rank) {
  std::vector<std::int64_t> features;
  for (const Range& range : value.layout().feature_ranges(rank)) {
    for (std::int64_t d = range.begin; d < range.end; ++d) features.push_back(d);
  }
  return features;
}

/// Parts of a value that are other features on every rank, added up one on the other.
void explain_other_features_summed(const RankCase& rank, Explanations& found) {
  using Kind = CollectiveStep::Kind;
  const FailedOp& op = rank.op();
  if (!op.op().empty() || op.instruction().collective.kind != Kind::all_reduce) return;
  const TapReader& input = op.inputs().front();
  const Mesh& mesh = op.run().mesh;
  const std::vector<std::int64_t> own = features_of(input, rank.rank());
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const std::vector<int> group = mesh.group(rank.rank(), {static_cast<int>(axis)});
    const bool fits = std::all_of(group.begin(), group.end(), [&](int member) {
      return input.defect(member).empty() && features_of(input, member).size() == own.size();
    });
    const bool other = std::any_of(group.begin(), group.end(),
                                   [&](int member) { return features_of(input, member) != own; });
    if (!fits || !other) continue;
    const ReductionBudget unit = reduction_budget(
        op.run().reduction, static_cast<int>(group.size()), input.dtype(), op.output().dtype());
    LocalValue value{rank.expected().y, F64Matrix(rank.got().rows(), rank.got().cols()), {}};
    if (value.y.rows() != rank.got().rows() || value.y.cols() != rank.got().cols()) return;
    std::vector<F64Matrix> parts;
    std::vector<std::vector<std::int64_t>> features;
    for (const int member : group) {
      parts.push_back(input.assemble({member}));
      features.push_back(features_of(input, member));
    }
    for (std::int64_t m = 0; m < value.y.rows(); ++m) {
      for (std::size_t i = 0; i < own.size(); ++i) {
        double sum = 0.0, squares = 0.0;
        for (std::size_t p = 0; p < parts.size(); ++p) {
          const double term = parts[p](m, features[p][i]);
          sum += term;
          squares += term * term;
        }
        value.y(m, own[i]) = sum;
        value.budget(m, own[i]) = unit.per_result * std::abs(sum) +
                                  unit.per_terms * std::sqrt(squares) + unit.constant;
      }
    }
    found.test("reduced_over_wrong_group", value,
               fmt::format("rank {} equals the sum over ranks {} along {}, whose parts are other "
                           "features of {}",
                           rank.rank(), fmt::join(group, ", "), mesh.axes[axis].name, input.name()));
  }
}

}  // namespace

void explain_sums(const RankCase& rank, Explanations& found) {
  if (rank.sum() == nullptr) return;
  explain_other_features_summed(rank, found);
  if (rank.sum()->terms.size() < 2) return;
  SumHypotheses(rank, found).run();
}

}  // namespace shardcheck
