// SPDX-License-Identifier: Apache-2.0
// A sum in which one rank's rows belong to other tokens: all of the others' shares are taken away, and what is left is
// looked for among that rank's rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t kMostRows = 64;  // of which every distance is tried

/// The sum with row from[m] of one term in place of its row m.
LocalValue with_rows(const SumOfRanks& sum, std::size_t term, const std::vector<std::int64_t>& from) {
  SumOfRanks moved = sum;
  Term& t = moved.terms[term];
  for (std::int64_t m = 0; m < t.value.rows(); ++m) {
    const Term& source = sum.terms[term];
    std::ranges::copy(source.value.row(from[static_cast<std::size_t>(m)]), t.value.row(m).begin());
    std::ranges::copy(source.variance.row(from[static_cast<std::size_t>(m)]),
                      t.variance.row(m).begin());
  }
  return moved.combine(sum.member_factors());
}

}  // namespace

void explain_tokens(const RankCase& rank, Explanations& found) {
  const SumOfRanks* const sum = rank.sum();
  if (sum == nullptr || sum->maximum || sum->members.size() < 2) return;
  const F64Matrix& got = rank.got();
  const std::vector<double> right = sum->member_factors();
  const double limit = rank.residual()->limits.a;
  for (std::size_t t = 0; t < sum->terms.size(); ++t) {
    if (right[t] == 0.0) continue;
    std::vector<double> others = right;
    others[t] = 0.0;
    const F64Matrix rest = sum->combine(others).y;
    const F64Matrix& share = sum->terms[t].value;
    std::vector<std::int64_t> from;
    std::int64_t moved = 0, first = -1;
    for (std::int64_t m = 0; m < got.rows(); ++m) {
      std::int64_t source = m;
      if (rank.wrong().rows[static_cast<std::size_t>(m)]) {
        const auto is = [&](std::int64_t other) {
          for (std::int64_t d = 0; d < got.cols(); ++d) {
            if (!rank.owned(m, d)) continue;
            const double b = rank.budget(m, d) + std::sqrt(sum->terms[t].variance(other, d));
            if (!(std::abs(got(m, d) - rest(m, d) - share(other, d)) <= limit * b)) return false;
          }
          return true;
        };
        source = -1;
        for (std::int64_t other = 0; other < got.rows() && source < 0; ++other) {
          if (other != m && rank.same_step(m, other) && is(other)) source = other;
        }
        if (source < 0) break;
        if (moved++ == 0) first = m;
      }
      from.push_back(source);
    }
    if (static_cast<std::int64_t>(from.size()) != got.rows() || moved == 0) continue;
    found.test("different_tokens_summed", with_rows(*sum, t, from),
               fmt::format("rank {} equals the sum with rank {}'s share of other tokens: {} rows, "
                           "row {} has that of row {}",
                           rank.rank(), sum->terms[t].rank, moved, first,
                           from[static_cast<std::size_t>(first)]));
  }
  // Every rank's rows are counted from its own first token: rank r's row m is token m + r rows further on.
  const auto rows = got.rows();
  if (rows == 0 || !rank.same_step(0, rows - 1)) return;
  for (const bool up : {true, false}) {
    for (std::int64_t each = 1; each < std::min(rows, kMostRows); ++each) {
      SumOfRanks moved = *sum;
      for (std::size_t t = 0; t < sum->terms.size(); ++t) {
        const std::int64_t by = (up ? 1 : -1) * each * static_cast<std::int64_t>(t);
        for (std::int64_t m = 0; m < rows; ++m) {
          const std::int64_t from = ((m + by) % rows + rows) % rows;
          std::ranges::copy(sum->terms[t].value.row(from), moved.terms[t].value.row(m).begin());
          std::ranges::copy(sum->terms[t].variance.row(from), moved.terms[t].variance.row(m).begin());
        }
      }
      found.test(
          "different_tokens_summed", moved.combine(right),
          fmt::format(
              "rank {} equals a sum in which each rank's rows lie {} tokens {} the rank's before",
              rank.rank(), each, up ? "after" : "before"));
      if (found.has("different_tokens_summed")) return;
    }
  }
}

}  // namespace shardcheck
