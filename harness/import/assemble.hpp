// SPDX-License-Identifier: Apache-2.0
// Imported rules to a plan: which modules they mean, what is cut, what is exchanged, and what can't be.
// Private to .cpp files.
#pragma once

#include "harness/import/import.hpp"
#include "harness/import/imported_rule.hpp"
#include "harness/import/json_places.hpp"
#include "harness/import/module_table.hpp"

namespace shardcheck {

/// A module with the rule that it got, for the checks that look at several.
struct PlacedRule {
  SelectedModule at;
  const ImportedRule* rule;
};

/// Throws as import_plan().
ImportedPlan assemble(const ImportedRules& imported, const ModuleTable& modules,
                      const JsonPlaces& places, const ImportOptions& options);

/// Refuses a style whose input is not as it needs it: a colwise o_proj below cut heads, a rowwise linear below a value
/// that is whole. Looks at attention and MLP, where the values between are elementwise or head by head.
void check_inputs(const std::vector<PlacedRule>& placed, const ModuleTable& modules,
                  const JsonPlaces& places, ImportSource source);

/// The cut that a rule means for a module.
WeightCut cut_of(const ImportedRule& rule, const Module& module, const JsonPlaces& places,
                 const ImportOptions& options);

}  // namespace shardcheck
