// SPDX-License-Identifier: Apache-2.0
// RMSNorm where ranks hold some features of each row: every rank sums the squares of its own, the plan's steps make one
// sum of them, and every rank scales what it has. The builder puts the two ops in place of rms_norm where a plan has
// steps at `<norm>.stat`.
#include <fmt/format.h>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Columns of a rank's part that count in its sum: a feature that several ranks of the sum hold (kv heads) counts once,
/// at the lowest of them. In local indices, in order.
Ranges counted_columns(const Layout& x, const Mesh& mesh, int rank) {
  std::vector<int> summed;
  for (std::size_t axis = 0; axis < x.placements.size(); ++axis) {
    if (x.placements[axis].cuts_features()) summed.push_back(static_cast<int>(axis));
  }
  const Ranges mine = x.feature_ranges(rank);
  Ranges counted = normalized(mine);
  for (const int member : mesh.group(rank, summed)) {
    if (member >= rank) continue;
    for (const Range& theirs : x.feature_ranges(member)) counted = without(counted, theirs);
  }
  return normalized(locate(mine, counted));
}

/// s = the sum of x^2 over the features that count on this rank, in the accumulate dtype.        x [M, D_r]    s [M, 1]
/// x S(features) gives s P(sum); R, S(tokens) and S(sequence) pass; P(sum) is refused. The plan's steps follow: an
/// all_reduce moves 4 M bytes (8 M in f64), whatever the wire dtype.
class RmsStatistic final : public Op {
 public:
  std::string_view name() const override { return "rms_statistic"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>&) const override {
    return {1};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    Layout out = query.inputs[0];
    out.owned.clear();
    out.may_overlap = false;
    for (std::size_t axis = 0; axis < query.mesh.axes.size(); ++axis) {
      const Placement& met = query.inputs[0].placements[axis];
      if (met.is_partial()) {
        placed.violations.push_back(requires_replicated(
            query, 0, static_cast<int>(axis), "partial_into_nonlinear",
            "the squares of a partial value don't add up to those of the whole: reduce it first"));
      }
      if (met.cuts_features()) out.placements[axis] = Placement::partial();
    }
    if (placed.violations.empty()) placed.outputs = {out};
    return placed;
  }

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>& outputs) const override {
    return {2 * inputs[0].rows * inputs[0].cols, operand_bytes(inputs, outputs)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Tensor out = context.allocate(instruction.outputs[0]);
    const Layout& layout = context.program().value(instruction.inputs[0]).layout;
    const Ranges counted = counted_columns(layout, context.program().mesh, context.rank());
    const Range first = counted.empty() ? Range{} : counted[0];
    Device& device = context.device();
    device.square_sum(context.stream(), inputs[0].col_range(first.begin, first.end), out);
    for (std::size_t i = 1; i < counted.size(); ++i) {
      const Tensor before = device.allocate(context.stream(), out.dtype, out.rows, 1);
      const Tensor more = device.allocate(context.stream(), out.dtype, out.rows, 1);
      device.copy(context.stream(), out, before);
      device.square_sum(context.stream(), inputs[0].col_range(counted[i].begin, counted[i].end), more);
      device.add(context.stream(), before, more, out);
    }
    return {out};
  }
};

/// y = x / sqrt(s / D + eps) * w of a rank's features, one rounding.        x, y [M, D_r]    s [M, 1]    w [D_r]
/// s is the sum of squares of the whole row of D features, so it may not be partial; w is cut as x is, where x is
/// S(features), and else whole; R, S(tokens) and S(sequence) of both alike pass. No communication.
class RmsApply final : public Op {
 public:
  std::string_view name() const override { return "rms_apply"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      const Placement &x = query.inputs[0].placements[i], &sum = query.inputs[1].placements[i];
      const bool weight_cut = query.weight != nullptr && query.weight->on(axis) != nullptr;
      const auto refuse = [&](int input, std::string rule, std::string sentence) {
        placed.violations.push_back(
            requires_replicated(query, input, axis, std::move(rule), std::move(sentence)));
      };
      if (x.is_partial()) {
        refuse(0, "partial_into_nonlinear",
               "a norm of a partial value is not the partial of the norm: reduce it first");
      } else if (sum.is_partial()) {
        refuse(1, "partial_into_nonlinear",
               "each rank holds only its share of the sum of squares: the norm needs all of it");
      } else if (x.cuts_rows() != sum.cuts_rows() || (x.cuts_rows() && !(x == sum))) {
        refuse(x.cuts_rows() ? 0 : 1, "tokens_differ",
               "a norm needs its input and its sum of squares for the same tokens");
      } else if (sum.cuts_features()) {
        refuse(1, "statistic_over_shard", "the sum of squares is one number a token, and each rank needs it");
      } else if (x.cuts_features() && !weight_cut && query.weight != nullptr) {
        refuse(0, "ranges_differ",
               "the input is cut along its features and the norm's weight is whole: cut the weight "
               "alike, it has an entry for each of them");
      } else if (!x.cuts_features() && weight_cut) {
        placed.violations.push_back(
            {"statistic_over_shard", 0, axis, Placement::replicated(), query.inputs[0],
             "this norm's weight is cut, but its input is whole: don't cut the weight", "", {}, 0});
      }
    }
    if (placed.violations.empty()) check_ranges(query, placed);
    if (placed.violations.empty()) placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    return {2 * outputs[0].rows * outputs[0].cols,
            operand_bytes(inputs, outputs) + weight_bytes(instruction, context)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Tensor out = context.allocate(instruction.outputs[0]);
    context.device().rms_apply(context.stream(), inputs[0],
                               context.weight(instruction.module + ".weight"), inputs[1],
                               context.program().value(instruction.inputs[0]).layout.features,
                               instruction.attributes.at("eps"), out);
    return {out};
  }

 private:
  /// A rank's features must be exactly those that its part of the weight is for.
  static void check_ranges(const PlaceQuery& query, Placed& placed) {
    if (query.weight == nullptr || query.weight->rows.empty()) return;
    for (int rank = 0; rank < query.mesh.ranks(); ++rank) {
      const Ranges& rows = query.weight->rows[static_cast<std::size_t>(rank)];
      const Ranges mine = query.inputs[0].feature_ranges(rank);
      if (mine == rows) continue;
      Layout assumed = query.inputs[0];
      assumed.owned = query.weight->rows;
      placed.violations.push_back(
          {"ranges_differ", 0, query.weight->cuts.empty() ? 0 : query.weight->cuts[0].axis,
           Placement::sharded(Dim::features), assumed,
           fmt::format("rank {} holds the features {} but the norm's weight for {}", rank,
                       to_string(mine), to_string(rows)),
           "", {}, 0});
      return;
    }
  }
};

}  // namespace

std::unique_ptr<const Op> make_rms_statistic() { return std::make_unique<RmsStatistic>(); }
std::unique_ptr<const Op> make_rms_apply() { return std::make_unique<RmsApply>(); }

}  // namespace shardcheck::ops
