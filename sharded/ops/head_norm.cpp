// SPDX-License-Identifier: Apache-2.0
// RMSNorm of every head by itself: its statistic needs one head whole, not the row, so ranks may hold different heads.
#include <fmt/format.h>

#include "model/error.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Head h of every row: y_h = x_h / sqrt(mean(x_h^2) + eps) * w, one w for all heads; f32 statistics.
///                                                                                x, y [M, heads * d]    w [d]
/// R, S(features) cut between heads and cuts of tokens pass; P(sum) and a cut inside a head are refused, and so is
/// a cut of w: every rank's heads need all of it. No communication.
/// Source: Hugging Face transformers, Qwen3Attention (q_norm and k_norm).
class HeadNorm final : public Op {
 public:
  std::string_view name() const override { return "head_norm"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    const std::int64_t head_dim = head_dim_of(query.node.attributes);
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      const Placement& met = query.inputs[0].placements[i];
      if (met.is_partial()) {
        placed.violations.push_back(requires_replicated(
            query, 0, axis, "partial_into_nonlinear",
            "a norm of a partial value is not the partial of the norm: reduce it first"));
      } else if (met == Placement::sharded(Dim::features) &&
                 !on_boundaries(query.inputs[0], query.mesh, head_dim)) {
        placed.violations.push_back(head_is_cut(
            query, 0, axis, head_dim, {cut_by_heads(query.inputs[0], query.config, query.mesh, axis)}));
      }
      if (query.weight != nullptr && query.weight->on(axis) != nullptr && placed.violations.empty()) {
        placed.violations.push_back(
            {"statistic_over_shard", 0, axis, Placement::replicated(), query.inputs[0],
             "this norm has one weight for every head: each rank needs all of it, don't cut it",
             ""});
      }
    }
    if (placed.violations.empty()) placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    return {4 * outputs[0].rows * outputs[0].cols,
            operand_bytes(inputs, outputs) + weight_bytes(instruction, context)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Tensor out = context.allocate(instruction.outputs[0]);
    const Tensor& x = inputs[0];
    const Tensor& weight = context.weight(instruction.module + ".weight");
    const double eps = instruction.attributes.at("eps");
    const std::int64_t head_dim = head_dim_of(instruction.attributes);
    if (x.cols % head_dim != 0) {
      throw ShapeError(fmt::format("{}: rank {} has {} features, no whole number of heads of {}",
                                   instruction.site, context.rank(), x.cols, head_dim));
    }
    if (x.contiguous()) {
      context.device().rms_norm(context.stream(), heads_as_rows(x, head_dim), weight, eps,
                                heads_as_rows(out, head_dim));
      return {out};
    }
    for (std::int64_t at = 0; at < x.cols; at += head_dim) {
      context.device().rms_norm(context.stream(), x.col_range(at, at + head_dim), weight, eps,
                                out.col_range(at, at + head_dim));
    }
    return {out};
  }

 private:
  static std::int64_t head_dim_of(const Attributes& attributes) {
    return static_cast<std::int64_t>(attributes.at("head_dim"));
  }
  /// [M, heads * d] whose rows follow each other, seen as [M * heads, d].
  static Tensor heads_as_rows(Tensor x, std::int64_t head_dim) {
    x.rows *= x.cols / head_dim;
    x.cols = x.row_stride = head_dim;
    return x;
  }
};

}  // namespace

std::unique_ptr<const Op> make_head_norm() { return std::make_unique<HeadNorm>(); }

}  // namespace shardcheck::ops
