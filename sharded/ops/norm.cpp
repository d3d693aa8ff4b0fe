// SPDX-License-Identifier: Apache-2.0
// RMSNorm and LayerNorm: a statistic over all features of a token, so the features must be whole on every rank.
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// y = x / sqrt(mean(x^2) + eps) * w, or (x - mean) / sqrt(var + eps) * w + b; f32 statistics.   x, y [M, D]  w, b [D]
/// R, S(tokens) and S(sequence) pass; P(sum) and S(features) are refused. No communication.
class Norm final : public Op {
 public:
  explicit Norm(bool rms) : rms_(rms) {}
  std::string_view name() const override { return rms_ ? "rms_norm" : "layer_norm"; }
  bool fusible() const override { return true; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }
  Placed place(const PlaceQuery& query) const override { return place_statistic(query); }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    const std::int64_t per_element = rms_ ? 4 : 8;
    return {per_element * outputs[0].rows * outputs[0].cols,
            operand_bytes(inputs, outputs) + (rms_ ? 1 : 2) * weight_bytes(instruction, context)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor out = context.allocate(instruction.outputs[0]);
    const double eps = instruction.attributes.at("eps");
    const Tensor& weight = context.weight(instruction.module + ".weight");
    if (rms_) {
      context.device().rms_norm(context.stream(), inputs[0], weight, eps, out);
    } else {
      context.device().layer_norm(context.stream(), inputs[0], weight,
                                  context.weight(instruction.module + ".bias"), eps, out);
    }
    return {out};
  }

 private:
  bool rms_;
};

}  // namespace

std::unique_ptr<const Op> make_rms_norm() { return std::make_unique<Norm>(true); }
std::unique_ptr<const Op> make_layer_norm() { return std::make_unique<Norm>(false); }

}  // namespace shardcheck::ops
