// SPDX-License-Identifier: Apache-2.0
// Linear layers: replicated, column-parallel and row-parallel are one op, told apart by where the weight is cut.
#include <fmt/format.h>

#include "sharded/ops/ops.hpp"
#include "sharded/partition_rules.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// y = x W^T (+ b). Per mesh axis:                                          x [M, I]    W [O, I]    y [M, O]
///   W R                 y is placed like x; x P(sum) passes only without a bias
///   W S(out)            column-parallel: x R, y S(features); no communication
///   W S(in)             row-parallel: x S(features) in the same ranges, y P(sum); an all_reduce of M O wire bytes
///                       follows, and the bias is added once, after it
/// Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
class Linear final : public Op {
 public:
  std::string_view name() const override { return "linear"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module* module,
                                   const std::vector<std::int64_t>&) const override {
    return {module->out};
  }

  Placed place(const PlaceQuery& query) const override {
    const Layout& x = query.inputs[0];
    Placed placed;
    Layout out = x;
    out.features = query.module->out;
    bool row_parallel = false;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      const ModulePlacement::AxisCut* cut = query.weight->on(axis);
      const Placement& met = x.placements[i];
      const auto refuse = [&](std::string rule, std::string sentence) {
        placed.violations.push_back(
            requires_replicated(query, 0, axis, std::move(rule), std::move(sentence)));
      };
      if (cut == nullptr) {
        if (met.is_partial() && (query.module->has_bias || met.kind == Placement::Kind::P_max)) {
          refuse(query.module->has_bias ? "bias_on_partial" : "partial_into_nonlinear",
                 query.module->has_bias
                     ? "each rank would add the bias to its partial sum, so the sum would hold it "
                       "once per rank"
                     : "a linear of a partial maximum is not the partial maximum of the linear");
        } else if (met.cuts_features()) {
          refuse(
              "sum_over_shard",
              "the input is cut along the features that this linear sums over, its weight is not");
          offer_row_parallel(query, axis, out, placed.violations.back());
        }
      } else if (cut->rows) {
        if (met.is_partial()) {
          refuse("partial_into_column_parallel",
                 "each rank's rows of a column-parallel weight would see only that rank's share of "
                 "the input");
        } else if (met.cuts_rows()) {
          refuse("tokens_into_column_parallel",
                 "ranks hold different tokens, but each has only some output features");
        } else if (met.cuts_features()) {
          refuse("sum_over_shard",
                 "the input is cut along the features that this linear sums over, its weight is cut along "
                 "the output features");
          offer_row_parallel(query, axis, out, placed.violations.back());
        } else {
          out.placements[i] = Placement::sharded(Dim::features);
        }
      } else {
        row_parallel = true;
        if (met.is_partial()) {
          refuse("partial_into_row_parallel",
                 "the input of a row-parallel linear must be cut, not partial");
        } else if (met.cuts_rows()) {
          refuse("tokens_into_row_parallel",
                 "ranks hold different tokens: their partial products don't belong together");
          require_columns(query, i, placed.violations.back());
        } else if (met.kind == Placement::Kind::R) {
          refuse("row_parallel_needs_shard",
                 "a row-parallel weight is cut along the input features, but every rank holds the whole input");
          require_columns(query, i, placed.violations.back());
          offer_column_parallel(query, axis, out, placed.violations.back());
        } else {
          out.placements[i] = Placement::partial();
        }
      }
    }
    if (placed.violations.empty()) check_ranges(query, row_parallel, placed);
    if (!placed.violations.empty()) return placed;
    out.owned = query.weight->rows;
    out.may_overlap = query.weight->may_overlap;
    placed.outputs = {out};
    return placed;
  }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    return {2 * inputs[0].rows * inputs[0].cols * outputs[0].cols,
            operand_bytes(inputs, outputs) + weight_bytes(instruction, context)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Tensor out = context.allocate(instruction.outputs[0]);
    const Tensor* bias = instruction.adds_bias ? &context.weight(instruction.module + ".bias")
                                               : nullptr;
    context.device().linear(context.stream(), inputs[0],
                            context.weight(instruction.module + ".weight"), bias, out);
    return {out};
  }

 private:
  /// A row-parallel weight's input is required as its columns are cut.
  static void require_columns(const PlaceQuery& query, std::size_t axis, PlacementViolation& violation) {
    violation.required = violation.assumed.placements[axis] = Placement::sharded(Dim::features);
    violation.assumed.owned = query.weight->cols;
    violation.fix = kRepairStep;
  }

  /// The weight cut along its input instead: y partial, and whole after the all_reduce that then belongs behind it.
  static void offer_row_parallel(const PlaceQuery& query, int axis, Layout out, PlacementViolation& violation) {
    if (query.weight->cuts.size() > 1) return;  // which of several cuts is meant can't be told
    const std::string& name = query.mesh.axes[static_cast<std::size_t>(axis)].name;
    const std::string cut = "in weights " + cut_entry(*query.module, false, name);
    out.owned.clear();
    out.may_overlap = false;
    Placement& placement = out.placements[static_cast<std::size_t>(axis)];
    placement = Placement::partial();
    violation.others.push_back({violation.input, violation.required, {out}, cut});
    placement = Placement::replicated();
    violation.others.push_back(
        {violation.input, violation.required, {out},
         fmt::format("{}, and \"{}.out\": \"all_reduce(sum, {})\"", cut, query.module->path, name)});
  }

  /// The weight cut along its output instead, as the input is whole; or not cut.
  static void offer_column_parallel(const PlaceQuery& query, int axis, Layout out, PlacementViolation& violation) {
    if (query.weight->cuts.size() > 1) return;
    const Module& module = *query.module;
    const std::string& name = query.mesh.axes[static_cast<std::size_t>(axis)].name;
    const bool heads = module.role == ModuleRole::q || module.role == ModuleRole::k || module.role == ModuleRole::v;
    out.owned.clear();
    out.may_overlap = false;
    Layout columns = heads ? cut_by_heads(out, query.config, query.mesh, axis)
                           : split_features(out, query.mesh, {axis}, 1);
    if (module.sections.empty()) {
      violation.others.push_back({violation.input, violation.required, {std::move(columns)},
                                  "in weights " + cut_entry(module, true, name)});
    }
    out.placements[static_cast<std::size_t>(axis)] = Placement::partial();
    // A slice for this linear alone: what else reads the value keeps it whole.
    violation.others.push_back({violation.input, violation.required, {out}, std::string(kRepairStep)});
    out.placements[static_cast<std::size_t>(axis)] = Placement::replicated();
    violation.others.push_back({violation.input, violation.required, {out},
                                fmt::format("in weights \"{}\": {{\"{}\": \"replicate\"}}", module.path, name)});
  }

  /// The rank's input features must be exactly the columns that its weight shard has.
  static void check_ranges(const PlaceQuery& query, bool row_parallel, Placed& placed) {
    if (!row_parallel) return;
    for (int rank = 0; rank < query.mesh.ranks(); ++rank) {
      const Ranges& cols = query.weight->cols[static_cast<std::size_t>(rank)];
      const Ranges mine = query.inputs[0].feature_ranges(rank);
      if (mine == cols) continue;
      Layout assumed = query.inputs[0];
      assumed.owned = query.weight->cols;
      int axis = 0;
      for (const ModulePlacement::AxisCut& cut : query.weight->cuts)
        axis = cut.rows ? axis : cut.axis;
      placed.violations.push_back(
          {"ranges_differ", 0, axis, Placement::sharded(Dim::features), assumed,
           fmt::format("rank {} holds the input features {} but the weight's columns {}", rank,
                       to_string(mine), to_string(cols)),
           ""});
      return;
    }
  }
};

}  // namespace

std::unique_ptr<const Op> make_linear() { return std::make_unique<Linear>(); }

}  // namespace shardcheck::ops
