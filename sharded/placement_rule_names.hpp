// SPDX-License-Identifier: Apache-2.0
// Every rule that a plan can break, by the name that reports use.
#pragma once

#include <string_view>

namespace shardcheck {

/// error: the plan is refused; warning: it is right, but wasteful.
enum class Severity { error, warning, note };
constexpr std::string_view name(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

struct PlacementRule {
  std::string_view name;
  Severity severity;
  std::string_view sentence;
};

inline constexpr PlacementRule kPlacementRules[] = {
    {"partial_into_nonlinear", Severity::error,
     "a norm, activation, product, rope or attention takes no partial value"},
    {"partial_plus_replicated", Severity::error,
     "a partial plus a whole value would hold the whole one once per rank in its sum"},
    {"bias_on_partial", Severity::error,
     "a bias added to a partial value would stand in its sum once per rank"},
    {"partial_into_column_parallel", Severity::error,
     "a column-parallel linear takes no partial input"},
    {"partial_into_row_parallel", Severity::error, "a row-parallel linear takes no partial input"},
    {"sum_over_shard", Severity::error,
     "an input cut along the features that a linear sums over needs a weight cut alike"},
    {"row_parallel_needs_shard", Severity::error,
     "a row-parallel linear needs an input cut along its features"},
    {"tokens_into_column_parallel", Severity::error,
     "ranks that hold different tokens can't each compute some of the output features"},
    {"tokens_into_row_parallel", Severity::error,
     "partial products of different tokens don't belong to one sum"},
    {"tokens_into_attention", Severity::error, "attention needs all tokens of its sequences"},
    {"statistic_over_shard", Severity::error,
     "a norm needs the whole row, and its weight may not be cut"},
    {"placements_differ", Severity::error, "operands of one op must be placed alike"},
    {"tokens_differ", Severity::error,
     "operands of one op must hold the same tokens: a value whose ranks hold different ones isn't replicated"},
    {"ranges_differ", Severity::error, "operands of one op must be cut in the same ranges"},
    {"head_is_cut", Severity::error, "no range may end inside an attention head"},
    {"kv_head_missing", Severity::error, "a rank needs the kv heads that serve its q heads"},
    {"cache_moves", Severity::error,
     "the cache that one phase fills is read by the other: both must place it alike"},
    {"ranges_missing", Severity::error, "every row and column of a cut weight must be on a rank"},
    {"ranges_overlap", Severity::error,
     "no two ranks may hold one row or column of a cut weight, but for kv heads that both need"},
    {"ranges_outside", Severity::error, "a range may not reach beyond its weight"},
    {"section_is_cut", Severity::error, "each section of a fused tensor must be cut on its own"},
    {"sections_misdeclared", Severity::error, "a fused tensor's sections must have the model's borders"},
    {"head_parameter_is_cut", Severity::error, "a vector that serves every head must stay whole"},
    {"head_parameter_not_cut", Severity::error,
     "a parameter with an entry per head, or per feature of all heads, must be cut with its heads"},
    {"quantisation_group_cut", Severity::error,
     "a cut by group, or of weights that stay quantised, may not go through a quantisation group"},
    {"collective_misplaced", Severity::error,
     "a collective needs a value that is placed as it expects"},
    {"output_not_replicated", Severity::error, "the logits must be whole on every rank"},
    {"redundant_collective", Severity::warning,
     "a collective moves what every rank has already, or what a later step throws away"},
    {"all_reduce_then_slice", Severity::note, "a sum of which each rank keeps a part needs no all_reduce"},
    {"unchecked_style", Severity::note,
     "what an imported plan asks for and nothing here can say is kept by name, not checked"},
    {"dequantised_group_cut", Severity::note,
     "a cut through a quantisation group is exact only because weights are dequantised when they are loaded"},
};

/// Null if no rule is called so: an op from outside may have rules of its own, which are errors.
constexpr const PlacementRule* find_placement_rule(std::string_view name) {
  for (const PlacementRule& rule : kPlacementRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

}  // namespace shardcheck
