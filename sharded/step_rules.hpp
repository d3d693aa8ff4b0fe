// SPDX-License-Identifier: Apache-2.0
// What a plan's collective needs of the value it is given, what comes out, and how a point's list of steps is repaired.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sharded/layout.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// An axis of a step's group on which the value isn't placed as the step needs.
struct StepMisfit {
  int axis = 0;
  Placement required;
  std::string sentence;
};

struct StepPlaced {
  Layout out;  // where something doesn't fit: of the step that would
  std::vector<StepMisfit> misfits;
  std::optional<CollectiveStep> instead;  // the step that fits the value; none where no step does, or nothing is wrong
};

/// all_reduce and reduce_scatter need P, all_gather S, all_to_all S of the dimension it joins, broadcast and slice R, on
/// every axis of `axes` of more than one rank. A sum over an axis on which the value is whole, while it is partial on
/// another, is taken for the sum over that other axis.
StepPlaced place_step(const CollectiveStep& step, const std::vector<int>& axes, const Layout& in,
                      const Mesh& mesh, std::int64_t head_dim);

/// The step that takes a value from one placement to another on an axis; none where there is none. `features` is the word
/// for that dimension.
std::optional<CollectiveStep> step_between(const Placement& from, const Placement& to,
                                           const std::string& axis,
                                           PlanDim features = PlanDim::features);

/// `steps` and then `step`: one reduction over both axes for two, nothing for a slice that is gathered again, an all_reduce
/// for a reduce_scatter that is, and one cut for a cut that is exchanged for another.
std::vector<CollectiveStep> with_step(std::vector<CollectiveStep> steps, const CollectiveStep& step,
                                      const Mesh& mesh);

/// An entry of a plan: "\"layers.0.mlp.down_proj.out\": \"all_reduce(sum, tp)\"", a list of several, [] for none.
std::string point_entry(const std::string& point, const std::vector<CollectiveStep>& steps);

}  // namespace shardcheck
