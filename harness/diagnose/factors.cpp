// SPDX-License-Identifier: Apache-2.0
// Off by one factor, or by one constant, everywhere.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/diagnose/hypothesis.hpp"

namespace shardcheck {
namespace {

// The factor that leaves the least of the error in units of the budget, over the wrong elements. Sums of so many products
// are rounded more than one element is, so the factor is corrected by what it leaves.
double best_factor(const RankCase& rank) {
  const F64Matrix& y = rank.expected().y;
  double factor = 0.0;
  for (int round = 0; round < 3; ++round) {
    double products = 0.0, squares = 0.0;
    for (std::int64_t m = 0; m < y.rows(); ++m) {
      if (!rank.wrong().rows[static_cast<std::size_t>(m)]) continue;
      for (std::int64_t d = 0; d < y.cols(); ++d) {
        if (!rank.owned(m, d) || !rank.wrong().cols[static_cast<std::size_t>(d)]) continue;
        const double scale = rank.budget(m, d) > 0.0 ? rank.budget(m, d) : 1.0;
        products += std::fma(-factor, y(m, d), rank.got()(m, d)) / scale * (y(m, d) / scale);
        squares += y(m, d) / scale * (y(m, d) / scale);
      }
    }
    factor += products / squares;
  }
  return factor;
}

/// P times a value that every rank has whole. An exchange that adds it up rounds at every hop, and bounds of hops that all
/// round the same number the same way add up.
LocalValue summed_over(const RankCase& rank, int size) {
  LocalValue value = scaled(rank.expected(), size, rank.op().out_roundoff());
  if (!rank.op().op().empty() || rank.sum() == nullptr) return value;
  const double hops = (size - 1) * std::max(rank.sum()->sent_roundoff, rank.op().out_roundoff());
  for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i)
    value.budget.data()[i] += hops * std::abs(value.y.data()[i]);
  return value;
}

}  // namespace

void explain_factors(const RankCase& rank, Explanations& found) {
  // A norm that is off by a factor has a wrong statistic: norms.cpp knows more, and asks here for what is left.
  const Module* const module = rank.op().module();
  if (module == nullptr || module->kind != ModuleKind::norm || rank.op().op().empty())
    explain_any_factor(rank, found);
}

void explain_any_factor(const RankCase& rank, Explanations& found) {
  const LocalValue& y = rank.expected();
  const double u = rank.op().out_roundoff();
  std::set<int> sizes;
  for (const Mesh::Axis& axis : rank.op().run().mesh.axes) {
    if (axis.size > 1) sizes.insert(axis.size);
  }
  if (rank.op().ranks() > 1) sizes.insert(rank.op().ranks());
  const int r = rank.rank();
  for (const int size : sizes) {
    found.test("factor_tp", summed_over(rank, size),
               fmt::format("rank {} is {} times what it should be: the number of ranks", r, size));
    found.test("factor_inverse_tp", scaled(y, 1.0 / size, u),
               fmt::format("rank {} is 1/{} of what it should be", r, size));
  }
  for (const double factor : {2.0, 0.5})
    found.test("factor_two", scaled(y, factor, u),
               fmt::format("rank {} is {} times what it should be", r, factor));
  if (rank.op().op() != "embedding")  // lookups.cpp knows more
    found.test("shard_dropped", scaled(y, 0.0, u),
               fmt::format("rank {}'s part is 0 ({})", r, rank.where()));
  // One number is fitted: with one wrong element any factor would do.
  if (rank.wrong().elements > 1) {
    const double factor = best_factor(rank);
    if (std::isfinite(factor) && factor != 0.0 && factor != 1.0)
      found.test("wrong_factor", scaled(y, factor, 2.0 * u),  // its own rounding, and that of the fit
                 fmt::format("rank {} is {:.6g} times what it should be", r, factor));
  }
  F64Matrix ones(y.y.rows(), y.y.cols());
  std::fill_n(ones.data(), ones.rows() * ones.cols(), 1.0);
  for (const int size : sizes) {
    for (const double times : {1.0, -1.0}) {
      const double constant = times * std::log(static_cast<double>(size));
      found.test("log_tp", plus(y, constant, ones, u),
                 fmt::format("rank {} is off by {:.6g} = {}log {}", r, constant,
                             times < 0.0 ? "-" : "", size));
    }
  }
}

}  // namespace shardcheck
