// SPDX-License-Identifier: Apache-2.0
// A Plan to the text of its file.
#pragma once

#include <map>
#include <string>

#include "sharded/plan.hpp"

namespace shardcheck {

/// A remark beside a rule, by the pattern of the rule.
using PlanRemarks = std::map<std::string, std::string>;

/// The words of a cut: "replicate", "shard(out by head)"; a cut with ranges is an object and has none.
std::string to_string(const WeightCut& cut);
std::string_view name(PlanDim dim);
std::string_view name(CutUnit unit);

/// JSON with comments, one rule a line in aligned columns. parse_plan() of it is the same plan.
std::string write_plan(const Plan& plan, const PlanRemarks& remarks = {},
                       const std::string& head = "");

}  // namespace shardcheck
