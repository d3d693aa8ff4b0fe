// SPDX-License-Identifier: Apache-2.0
// A smaller model on which a plan does all it does on the large one: over the field equality is exact, so a dimension
// need only be as large as the rules that cut it tell apart.
#pragma once

#include <cstdint>

#include "model/model.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// How far dimensions are shrunk.
struct ShrinkLimits {
  std::int64_t units_per_rank = 2;  // of every cut dimension, at least
  std::int64_t least_head_dim = 8;  // at 2 both conventions of rotary pairs agree
  std::int64_t largest_window = 5;
};

/// The config of a model of the same layers in which, for this plan and mesh,
///   - heads and kv heads are unchanged, head_dim is at least 8 (or what it was), and hidden is no product of them;
///   - a dimension n that is cut in units of u over P ranks is the least n' >= 2 u P with n' = n modulo u P; for cuts
///     as torch.chunk makes them large enough that the same ranks are full, short and empty; one that was smaller
///     stays;
///   - any two widths that aren't one expression of the config (q and k of as many heads are) differ;
///   - a window w is min(w, 5), and every layer is kept;
///   - a dimension that the plan cuts by explicit ranges of rows is unchanged.
/// Which dimension a module's rows and columns are is found out by changing the config, so that it holds for every
/// family. `resolved` is the plan on this mesh and the large model.
Config shrunken(const Model& model, const Plan& plan, const ResolvedPlan& resolved,
                const ShrinkLimits& limits = {});

}  // namespace shardcheck
