// SPDX-License-Identifier: Apache-2.0
// Bias of a row-parallel linear: added once, after the reduction, by every rank to its own copy or shard.
#include <fmt/format.h>

#include <algorithm>

#include "model/error.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// y = x + b, in f32, rounded once.                                         x, y [M, O]    b [O]
/// x R: the whole bias. x S(features): the rank's part of it. x P(sum) is refused: the bias would count once per rank.
class Bias final : public Op {
 public:
  std::string_view name() const override { return "bias"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    for (std::size_t axis = 0; axis < query.mesh.axes.size(); ++axis) {
      if (!query.inputs[0].placements[axis].is_partial()) continue;
      placed.violations.push_back(
          requires_replicated(query, 0, static_cast<int>(axis), "bias_on_partial",
                              "each rank would add the bias to its partial sum, so the sum would "
                              "hold it once per rank"));
    }
    if (placed.violations.empty()) check_held(query, placed);
    if (placed.violations.empty()) placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction&, const RankContext& context, const std::vector<Extent>& inputs,
            const std::vector<Extent>& outputs) const override {
    const auto size = static_cast<std::int64_t>(element_size(context.settings().storage));
    return {outputs[0].rows * outputs[0].cols, operand_bytes(inputs, outputs) + outputs[0].cols * size};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor out = context.allocate(instruction.outputs[0]);
    if (inputs[0].rows != out.rows || inputs[0].cols != out.cols) {
      throw ShapeError(fmt::format("{}: rank {} has [{}, {}] to add the bias to, its value is [{}, {}]",
                                   instruction.site, context.rank(), inputs[0].rows, inputs[0].cols, out.rows,
                                   out.cols));
    }
    // The rank's bias has the rows of its weight shard, the value may be cut further (a reduce_scatter of features).
    const Module& module = *context.program().find_module(instruction.module);
    const Tensor& shard = context.weight(module.bias());
    const Ranges held = context.program().plan.rows_of(module, context.rank());
    const Ranges mine =
        context.program().value(instruction.outputs[0]).layout.feature_ranges(context.rank());
    std::int64_t at = 0;
    for (const Range& range : locate(held, mine)) {
      const std::int64_t end = at + range.size();
      context.device().bias(context.stream(), inputs[0].col_range(at, end),
                            shard.col_range(range.begin, range.end), out.col_range(at, end));
      at = end;
    }
    if (at != out.cols) {
      throw ShapeError(fmt::format("{}: rank {} holds the bias of {} features, its value has {}",
                                   instruction.site, context.rank(), at, out.cols));
    }
    return {out};
  }

 private:
  /// A rank has the bias of its own rows of the weight only: features gathered before have come without theirs.
  static void check_held(const PlaceQuery& query, Placed& placed) {
    // Both ways, that is: a weight cut by rows alone makes a sum only where it is assumed to be cut otherwise.
    if (query.weight == nullptr || query.weight->rows.empty() || query.weight->cols.empty()) return;
    for (int rank = 0; rank < query.mesh.ranks(); ++rank) {
      const Ranges& held = query.weight->rows[static_cast<std::size_t>(rank)];
      const Ranges mine = query.inputs[0].feature_ranges(rank);
      if (total(locate(held, mine)) == total(mine)) continue;
      const auto cut = std::find_if(query.weight->cuts.begin(), query.weight->cuts.end(),
                                    [](const ModulePlacement::AxisCut& c) { return c.rows; });
      if (cut == query.weight->cuts.end()) return;
      Layout assumed = query.inputs[0];
      assumed.owned = query.weight->rows;
      for (const ModulePlacement::AxisCut& c : query.weight->cuts)
        if (c.rows) assumed.placements[static_cast<std::size_t>(c.axis)] = Placement::sharded(Dim::features);
      placed.violations.push_back(
          {"ranges_differ", 0, cut->axis, Placement::sharded(Dim::features), assumed,
           fmt::format("rank {} has the bias of the features {} and the value of {}: finish the sum before gathering",
                       rank, to_string(held), to_string(mine)),
           "", {{0, Placement::sharded(Dim::features), {query.inputs[0]}, ""}}, 1});
      return;
    }
  }
};

}  // namespace

std::unique_ptr<const Op> make_bias() { return std::make_unique<Bias>(); }

}  // namespace shardcheck::ops
