// SPDX-License-Identifier: Apache-2.0
// Layouts that other projects state at a module's border, and the collectives between two of them.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "harness/import/imported_rule.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

std::string_view describe(ImportedLayout layout);  // "whole on every rank"

/// The steps that turn one layout into another on an axis; empty where they are the same or one is `any`. No value:
/// no step does that. `features` is the word for the feature dimension at this point.
std::optional<std::vector<CollectiveStep>> steps_between(ImportedLayout from, ImportedLayout to,
                                                         PlanDim features, const std::string& axis);

}  // namespace shardcheck
