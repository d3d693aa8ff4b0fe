// SPDX-License-Identifier: Apache-2.0
// KV cache: appends this step's keys and values, and hands out what attention may read.
#include <algorithm>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Appends k and v [M, kv_r * d] to the rank's cache and returns, per sequence of the step in order, the rows of the
/// positions that some query of the step may see.                   k_cache, v_cache [sum of visible, kv_r * d]
/// Each rank keeps the kv heads that it computed: placements pass through unchanged, nothing is communicated.
class Cache final : public Op {
 public:
  std::string_view name() const override { return "cache"; }
  ValueRows rows() const override { return ValueRows::cache; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return inputs;
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      for (int input = 0; input < 2; ++input) {
        const Placement& met = query.inputs[static_cast<std::size_t>(input)].placements[i];
        if (met.is_partial()) {
          placed.violations.push_back(
              requires_replicated(query, input, static_cast<int>(i), "partial_into_nonlinear",
                                  "the cache keeps whole keys and values, not partial sums"));
        } else if (met == Placement::sharded(Dim::tokens)) {
          placed.violations.push_back(
              requires_replicated(query, input, static_cast<int>(i), "tokens_into_attention",
                                  "attention needs every token of the step"));
        }
      }
    }
    if (placed.violations.empty()) placed.outputs = query.inputs;
    return placed;
  }

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>&) const override {
    // Written once; attention reads the cache in place.
    return {0, 2 * (inputs[0].bytes() + inputs[1].bytes())};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Device& device = context.device();
    Stream& stream = context.stream();
    const auto window = static_cast<std::int64_t>(instruction.attributes.at("window"));
    const std::vector<StepSequence>& sequences = context.step().sequences;
    // One sequence: a view of the cache itself. Several: their stretches one after the other.
    const bool one = sequences.size() == 1;
    Tensor keys = one ? Tensor{} : context.allocate(instruction.outputs[0]);
    Tensor values = one ? Tensor{} : context.allocate(instruction.outputs[1]);
    std::int64_t in_row = 0, out_row = 0;
    for (const StepSequence& sequence : sequences) {
      SequenceCache& cache = context.cache(instruction.module, sequence.sequence, inputs[0].cols);
      const std::int64_t end = sequence.first + sequence.count;
      device.copy(stream, inputs[0].row_range(in_row, in_row + sequence.count),
                  cache.k.row_range(sequence.first, end));
      device.copy(stream, inputs[1].row_range(in_row, in_row + sequence.count),
                  cache.v.row_range(sequence.first, end));
      cache.length = std::max(cache.length, end);
      in_row += sequence.count;
      const Range seen = visible_keys(sequence, window);
      if (one)
        return {cache.k.row_range(seen.begin, seen.end), cache.v.row_range(seen.begin, seen.end)};
      device.copy(stream, cache.k.row_range(seen.begin, seen.end),
                  keys.row_range(out_row, out_row + seen.size()));
      device.copy(stream, cache.v.row_range(seen.begin, seen.end),
                  values.row_range(out_row, out_row + seen.size()));
      out_row += seen.size();
    }
    return {keys, values};
  }
};

}  // namespace

std::unique_ptr<const Op> make_cache() { return std::make_unique<Cache>(); }

}  // namespace shardcheck::ops
