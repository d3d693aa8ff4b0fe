// SPDX-License-Identifier: Apache-2.0
// Private to the judge: a collective on its own, against the f64 sum (or the copy) of what the ranks put in.
#pragma once

#include <vector>

#include "harness/judge_work.hpp"
#include "kernels/reduction.hpp"

namespace shardcheck {

/// b of a sum over `terms` ranks = per_result |y| + per_terms sqrt(sum_r s_r^2) + constant.
struct ReductionBudget {
  double per_result = 0.0, per_terms = 0.0, constant = 0.0;
};

/// u_out |y| + u_hop sqrt(H sum_r s_r^2) + P half-ulps; H = P - 1 for a chain and 1 + ceil(log2 P) for fixed_tree, u_hop
/// that of the dtype that running sums are kept in.
ReductionBudget reduction_budget(const ReduceSpec& spec, int terms, DType wire, DType out);

/// What a collective must give follows from where its input is: whose parts a rank's output is made of, the first owner's
/// number where several have one; and whether they are summed (or the largest taken) or only moved.
std::vector<int> collective_sources(const Work& work, const TapReader& input, int rank);
bool collective_sums(const Work& work, const TapReader& input);
bool collective_takes_maximum(const Work& work, const TapReader& input);
/// Moved, not computed: equal, or rounded once where the output's dtype can't hold every number of the input's.
LocalValue moved_value(const TapReader& input, const std::vector<int>& owners, DType out);

std::vector<TapScore> judge_collective(const Work& work, bool taps_may_be_missing);

}  // namespace shardcheck
