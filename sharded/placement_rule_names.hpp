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
    {"tokens_into_attention", Severity::error, "rope and attention need all tokens of the step"},
    {"statistic_over_shard", Severity::error,
     "a norm needs the whole row, and its weight may not be cut"},
    {"placements_differ", Severity::error, "operands of one op must be placed alike"},
    {"ranges_differ", Severity::error, "operands of one op must be cut in the same ranges"},
    {"head_is_cut", Severity::error, "no range may end inside an attention head"},
    {"kv_head_missing", Severity::error, "a rank needs the kv heads that serve its q heads"},
    {"collective_misplaced", Severity::error,
     "a collective needs a value that is placed as it expects"},
    {"output_not_replicated", Severity::error, "the logits must be whole on every rank"},
    {"redundant_collective", Severity::warning,
     "a collective moves what every rank has already, or what the next step throws away"},
};

/// Null if no rule is called so: an op from outside may have rules of its own, which are errors.
constexpr const PlacementRule* find_placement_rule(std::string_view name) {
  for (const PlacementRule& rule : kPlacementRules) {
    if (rule.name == name) return &rule;
  }
  return nullptr;
}

}  // namespace shardcheck
