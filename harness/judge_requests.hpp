// SPDX-License-Identifier: Apache-2.0
// Private to the judge: which products a linear's outputs call for, and what they may be off by.
#pragma once

#include <vector>

#include "harness/judge_linear.hpp"
#include "harness/judge_work.hpp"

namespace shardcheck {

/// The linear's own output; where a candidate doesn't show it, the first value after it that it shows: the reduced or
/// gathered one, with or without its bias. Empty if there is none.
OutputSet product_outputs(const Work& work, bool taps_may_be_missing);

/// One request per distinct input and share of the weight's columns. What can't be judged is failed in `outputs`.
std::vector<ProductRequest> product_requests(const Work& work, OutputSet& outputs,
                                             const Arithmetic& arithmetic, bool taps_may_be_missing);

}  // namespace shardcheck
