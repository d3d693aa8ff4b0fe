// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "harness/import/module_table.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// Cuts q, k, v and o between whole heads, k and v so that they serve the rank's q heads, and everything else balanced:
/// replaces units and ranges, never what is cut along which dimension or what is exchanged. Returns what it changed.
std::vector<std::string> repair(PlanSection& section, const ModuleTable& modules);

}  // namespace shardcheck
