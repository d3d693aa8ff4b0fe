// SPDX-License-Identifier: Apache-2.0
// The residual add and the RMSNorm that reads it, in one pass over memory.
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// sum = a + b, rounded once; y = rms_norm(sum), of the rounded sum.            a, b, sum, y [M, D]  w [D]
/// The bits of `add` and `rms_norm`, one after the other. What each of them refuses is refused: operands that aren't
/// placed alike, P, and S(features). R, S(tokens) and S(sequence) pass to both outputs; no communication.
class AddRmsNorm final : public Op {
 public:
  std::string_view name() const override { return "add_rms_norm"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0], inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed sum = place_elementwise(query, "a norm");
    if (!sum.violations.empty()) return sum;
    Placed norm = place_statistic(query);
    if (norm.violations.empty()) norm.outputs = {query.inputs[0], query.inputs[0]};
    return norm;
  }

  /// The sum is written once and not read again: that is what fusing saves.
  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    return {5 * outputs[0].rows * outputs[0].cols,
            operand_bytes(inputs, outputs) + weight_bytes(instruction, context)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor sum = context.allocate(instruction.outputs[0]);
    Tensor out = context.allocate(instruction.outputs[1]);
    context.device().add_rms_norm(context.stream(), inputs[0], inputs[1],
                                  context.weight(instruction.module + ".weight"),
                                  instruction.attributes.at("eps"), sum, out);
    return {sum, out};
  }
};

}  // namespace

std::unique_ptr<const Op> make_add_rms_norm() { return std::make_unique<AddRmsNorm>(); }

}  // namespace shardcheck::ops
