// SPDX-License-Identifier: Apache-2.0
// Cuts that go through a quantisation group of the checkpoint. Tensor types alone are read, no weights.
#pragma once

#include <vector>

#include "model/model.hpp"
#include "sharded/plan.hpp"
#include "sharded/program.hpp"

namespace shardcheck {

/// A finding for each linear or embedding whose columns a rank's range splits inside a group: `quantisation_group_cut` where the plan
/// cuts it by group, or where ranks keep their weights quantised; else `dequantised_group_cut`, whose sentence names the
/// group sizes that keep groups whole. None for unquantised checkpoints, and for models of shapes alone.
std::vector<Finding> quantisation_groups(const Model& model, const ResolvedPlan& plan,
                                         bool kept_quantised = false);

}  // namespace shardcheck
