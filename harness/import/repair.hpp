// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "harness/import/import.hpp"
#include "harness/import/module_table.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// Cuts q, k, v and o between whole heads, k and v so that they serve the rank's q heads, and everything else balanced,
/// such as what attention has whole. Whole kv heads with the q heads that they serve stay where a size of the options has
/// more ranks than heads. Replaces units and ranges, never what is cut along which dimension or what is exchanged. Returns
/// what it changed.
std::vector<std::string> repair(PlanSection& section, const ModuleTable& modules,
                                const ImportOptions& options);

}  // namespace shardcheck
