// SPDX-License-Identifier: Apache-2.0
// Whether the ranges that a resolved plan gives the ranks are partitions at all: of each weight by itself, of the
// sections of a fused one, and of parameters that go with heads. What values make of them is placement_rules.hpp's.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

struct PartitionCheck {
  std::vector<Finding> findings;  // by module, in the order of the forward pass
  /// How to go on: placements that stand for the broken ones while layouts are derived, by module.
  std::map<std::string, ModulePlacement, std::less<>> assumed;
  /// Modules whose ranges are broken and have no such stand-in: what follows from their ranges is no second mistake.
  std::set<std::string, std::less<>> broken;
};

/// Checks rows and columns of every weight: as many entries as ranks, inside the weight, every index on a rank, on one
/// rank only (kv heads excepted: several ranks may need one), the same on ranks that differ only along axes that don't
/// cut it; sections of a fused tensor cut alike; one vector for every head whole, a vector over all heads cut with them.
PartitionCheck check_partitions(const Config& config, const std::vector<Module>& modules,
                                const ResolvedPlan& plan);

/// The plan with every range cut off at its weight's end, and with as many entries as the mesh has ranks: what a forced
/// run may slice.
ResolvedPlan within_weights(ResolvedPlan plan, const std::vector<Module>& modules);

/// Rows of the kv heads that serve these rows of q.
Ranges kv_rows_for(const Config& config, const Ranges& q_rows);

/// A plan entry that cuts the module's rows or columns in its natural unit: "\"lm_head\": {\"tp\": \"shard(vocab)\"}".
std::string cut_entry(const Module& module, bool rows, const std::string& axis);

}  // namespace shardcheck
