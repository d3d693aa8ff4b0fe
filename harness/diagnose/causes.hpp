// SPDX-License-Identifier: Apache-2.0
// The names of all causes that a diagnosis can give, and what each means. Names are part of shardcheck.verify/1.
#pragma once

#include <string_view>

namespace shardcheck {

struct Cause {
  std::string_view name;
  std::string_view sentence;  // what it means, without numbers
};

/// Simplest first: where several explain an error, the earlier one is named.
inline constexpr Cause kCauses[] = {
    // not a number
    {"never_written", "elements were never written: they still hold the poison of fresh memory"},
    {"not_finite", "the result is not finite though its inputs are"},
    {"shape_differs", "the value has another shape or dtype than its placement calls for"},
    // sums over ranks
    {"one_ranks_partial", "equals one rank's partial: the ranks' shares were not summed"},
    {"shard_dropped", "one rank's share is missing from the sum, or its part from the whole"},
    {"shard_doubled", "one rank's share was counted more than once"},
    {"factor_tp", "off by the number of ranks: a sum over values that were whole already"},
    {"factor_inverse_tp", "off by 1 / the number of ranks: divided once too often, or averaged"},
    {"factor_two", "off by the factor 2 or 1/2"},
    {"wrong_factor", "off by one factor that is the same for all elements"},
    {"log_tp",
     "off by a multiple of the logarithm of the number of ranks: a sum of exponentials counted so "
     "often"},
    {"bias_times_tp", "the bias was counted once per rank, or another wrong number of times"},
    {"bias_missing", "the bias was not added"},
    {"residual_times_tp",
     "the residual was counted once per rank, or another wrong number of times"},
    {"residual_missing", "the residual was not added"},
    {"different_tokens_summed", "rows of different tokens were added up"},
    {"reduced_over_wrong_group", "the sum runs over another group of ranks than the plan's"},
    {"reduced_as_maximum",
     "the largest of the ranks' values was taken, or one was averaged, where they had to be "
     "summed"},
    // where values came from
    {"rows_of_wrong_token", "table entries of other tokens than the run's"},
    {"rows_not_masked", "table entries that other ranks own were not masked out"},
    {"shard_stale", "the value of an earlier step, or of another layer's buffer"},
    {"rows_of_wrong_rank", "another rank's part of the value stands here"},
    {"kv_head_of_neighbour", "the kv head of a neighbour was used"},
    {"permuted_heads", "heads are in another order"},
    {"permuted_sections", "sections of a fused tensor (q | k | v, gate | up) are in another order"},
    {"permuted_rows", "rows, tokens or features, are in another order"},
    {"replicas_differ", "ranks that hold the same part have different numbers"},
    // weights
    {"weight_of_wrong_rank", "computed with another rank's shard of the weight"},
    {"weight_of_wrong_module", "computed with another module's weight"},
    {"weight_shifted",
     "computed with a shard of the weight that begins at the wrong row or column"},
    {"weight_transposed", "computed with the transposed weight"},
    {"weight_differs", "computed with a weight that isn't the plan's slice of the whole"},
    // inside an op
    {"statistic_of_shard", "a statistic of one shard, where the whole value's was needed"},
    {"wrong_divisor", "a statistic with another divisor or epsilon than the model's"},
    {"wrong_positions", "positions are counted from another start than the model's"},
    {"wrong_convention", "the other RoPE convention (pairs against halves), or another base"},
    {"wrong_mask", "keys are seen that the mask hides, or hidden that it shows"},
    {"wrong_scale", "attention scores are scaled by another factor than the model's"},
    {"operand_missing", "one of the op's operands was left out"},
    {"operands_exchanged", "two of the op's operands were taken for each other"},
    {"not_applied", "the op was skipped: its result is its input"},
    {"wrong_function", "another function than the model's"},
    // precision
    {"precision_too_low", "right but for rounding: a coarser format or accumulator than stated"},
    // no numbers needed
    {"collective_differs", "another collective than the plan's: kind, group, order or bytes"},
    {"overwritten",
     "a buffer was overwritten, or another one read, between its producer and a consumer"},
    {"run_ended", "the program ended here"},
    {"unexplained", "none of the known causes explains the error"},
};

constexpr const Cause* find_cause(std::string_view name) {
  for (const Cause& cause : kCauses) {
    if (cause.name == name) return &cause;
  }
  return nullptr;
}

}  // namespace shardcheck
