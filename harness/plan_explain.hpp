// SPDX-License-Identifier: Apache-2.0
// What a plan does to a model, for people: who holds what of each weight, and what is sent where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/model.hpp"
#include "sharded/op.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// A collective at a point. Bytes are of the whole tensor of rank 0's group, per token: as a rank's ledger has them where
/// storage and wire have two bytes an element, and four in a norm's statistic. A slice sends nothing.
struct ExplainedStep {
  std::string point;   // "layers.*.mlp.down_proj.out"
  std::string words;   // "all_reduce(sum, tp)"
  std::string phases;  // "prefill, decode"
  CollectiveStep::Kind kind = CollectiveStep::Kind::all_reduce;
  ReduceOp op = ReduceOp::sum;
  bool in_groups = false;  // what comes out is still cut, or partial, along an axis
  std::int64_t bytes_per_token = 0;
};

/// What one rank holds of a weight.
struct ExplainedShare {
  Ranges rows, cols;
  std::string words;  // "rows 0-31, q heads 0-3"
};

struct ExplainedModule {
  std::string path;                    // "layers.*.mlp.down_proj"
  Module module;                       // of the first of its layers
  std::string cut;                     // the plan's words, "shard(in)"; "replicate"
  std::vector<ExplainedShare> shares;  // by rank
  std::vector<ExplainedStep> steps;
};

/// Modules outside the layers, or layers that are alike.
struct ExplainedGroup {
  std::vector<std::int64_t> layers;  // empty: outside the layers
  std::vector<ExplainedModule> modules;
};

struct PlanExplanation {
  std::string model, plan, origin;
  Mesh mesh;
  std::vector<ExplainedGroup> groups;         // in forward order
  std::vector<std::int64_t> weights_of_rank;  // elements that each rank holds
  std::int64_t weights = 0;                   // elements of the model
  std::vector<UncheckedRule> unchecked;
  std::size_t broken_rules = 0;  // of lint
};

/// From shapes alone. Throws InputError as resolve() does.
PlanExplanation explain(const Model& model, const Plan& plan, const Mesh& mesh, const Registry& ops);

std::string explain_text(const PlanExplanation& explanation);
/// Schema "shardcheck.plan/1".
std::string explain_json(const std::vector<PlanExplanation>& explanations);

}  // namespace shardcheck
