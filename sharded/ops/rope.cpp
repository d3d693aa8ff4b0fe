// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding of q or k, head by head.
#include <fmt/format.h>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Rotates the pairs (i, i + d/2) of every head by position x frequency_i.           x, y [M, heads * d]
/// R, S(features) cut between heads, S(tokens) and S(sequence) pass; P(sum) and a cut inside a head are refused. No
/// communication: a rank knows the positions of its own rows.
/// Source: Su et al. 2021 (arXiv 2104.09864); half-split pairs as in Hugging Face transformers.
class Rope final : public Op {
 public:
  std::string_view name() const override { return "rope"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      const Placement& met = query.inputs[0].placements[i];
      if (met.is_partial()) {
        // The rotation is linear, but its result is rounded: summing rounded shares is another program.
        placed.violations.push_back(
            requires_replicated(query, 0, axis, "partial_into_nonlinear",
                                "rope takes a whole value, not a partial sum"));
      } else if (met == Placement::sharded(Dim::features) &&
                 !on_boundaries(query.inputs[0], query.mesh, query.config.head_dim)) {
        placed.violations.push_back(
            head_is_cut(query, 0, axis, query.config.head_dim,
                        {cut_by_heads(query.inputs[0], query.config, query.mesh, axis)}));
      }
    }
    if (placed.violations.empty()) placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>& outputs) const override {
    return {3 * outputs[0].rows * outputs[0].cols, operand_bytes(inputs, outputs)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor out = context.allocate(instruction.outputs[0]);
    const auto [cos, sin] = context.rope_table(context.rows_of(instruction.outputs[0]));
    context.device().rope(context.stream(), inputs[0], cos, sin, context.program().config.head_dim,
                          RopeConvention::half_split, out);
    return {out};
  }
};

}  // namespace

std::unique_ptr<const Op> make_rope() { return std::make_unique<Rope>(); }

}  // namespace shardcheck::ops
