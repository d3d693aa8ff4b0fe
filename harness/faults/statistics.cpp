// SPDX-License-Identifier: Apache-2.0
// Kind H: a norm's statistic over a part of the row, or over too much of it.
#include <algorithm>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/op.hpp"

namespace shardcheck::faults {
namespace {

std::vector<std::string> norms(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) { return is_norm(i); });
}

void normalise(RankContext& context, const Instruction& i, const Tensor& x, const Range& cols,
               const Tensor& out) {
  const Tensor weight = context.weight(i.module + ".weight").col_range(cols.begin, cols.end);
  const double eps = i.attributes.at("eps");
  if (is_op(i, "rms_norm")) {
    context.device().rms_norm(context.stream(), x.col_range(cols.begin, cols.end), weight, eps,
                              out.col_range(cols.begin, cols.end));
  } else {
    const Tensor bias = context.weight(i.module + ".bias").col_range(cols.begin, cols.end);
    context.device().layer_norm(context.stream(), x.col_range(cols.begin, cols.end), weight, bias,
                                eps, out.col_range(cols.begin, cols.end));
  }
}

/// Each part of the row by its own statistic, as many parts as ranks.
std::optional<Planted> by_parts(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (!program.value(site.inputs[0]).layout.owned.empty()) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor out = context.allocate(i.outputs[0]);
        const Partition parts = Partition::balanced(inputs[0].cols, context.program().mesh.ranks());
        for (int part = 0; part < parts.ranks(); ++part)
          normalise(context, i, inputs[0], parts.of(part)[0], out);
        return std::vector<Tensor>{out};
      });
}

std::optional<Planted> other_epsilon(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        Instruction other = i;
        other.attributes["eps"] = i.attributes.at("eps") * 10000.0;
        return run_plainly(context, other, inputs);
      });
}

/// A row that is padded with zeros to twice its width, which the mean counts.
std::optional<Planted> padded_width(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (!is_op(site, "rms_norm") || !program.value(site.inputs[0]).layout.owned.empty())
    return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor& x = inputs[0];
        const Tensor weight = context.weight(i.module + ".weight");
        const std::vector<Tensor> row{x, zeros_like(context, x)}, weights{weight, weight};
        const Tensor wide = joined_cols(context, row);
        const Tensor out = zeros_like(context, wide);
        context.device().rms_norm(context.stream(), wide, joined_cols(context, weights),
                                  i.attributes.at("eps"), out);
        return std::vector<Tensor>{copy_of(context, out.col_range(0, x.cols))};
      });
}

/// A norm of each head that takes all of the rank's heads together.
std::optional<Planted> heads_together(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const std::int64_t d = program.config.head_dim;
  if (program.value(site.inputs[0]).layout.local_features(spot.rank) < 2 * d) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor& x = inputs[0];
        const Tensor weight = context.weight(i.module + ".weight");
        std::vector<Tensor> weights;
        for (std::int64_t at = 0; at < x.cols; at += weight.cols) weights.push_back(weight);
        const Tensor out = context.allocate(i.outputs[0]);
        context.device().rms_norm(context.stream(), x, joined_cols(context, weights),
                                  i.attributes.at("eps"), out);
        return std::vector<Tensor>{out};
      });
}

/// Points of norms whose statistic the plan sums over ranks.
std::vector<std::string> statistics_summed(const Program& program, Phase phase) {
  return module_paths(program, [phase](const Program& p, const Module& m) {
    return m.kind == ModuleKind::norm && !p.plan.steps(phase, m.path + ".stat").empty();
  });
}

std::optional<Planted> statistic_removed(const Program& program, const Spot& spot) {
  Planted planted;
  planted.edit_plan = [point = spot.place + ".stat"](ResolvedPlan& plan) {
    for (auto& [phase, points] : plan.points) points.erase(point);
  };
  planted.first = {spot.place, everyone(program)};
  return planted;
}

/// Each rank goes on with its own sum of squares.
std::optional<Planted> statistic_not_summed(const Program& program, const Spot& spot) {
  const Instruction* sum = at_site(program, spot.phase, spot.place + ".stat");
  if (sum == nullptr || sum->op != nullptr) return std::nullopt;
  Planted planted = execute_instead(
      sum->site, everyone(program),
      [](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{copy_of(context, inputs[0])};
      });
  return planted;
}

}  // namespace

std::vector<Fault> statistics() {
  std::vector<Fault> all;
  all.push_back({.name = "norm_by_parts",
                 .kind = 'H',
                 .source = "turboderp-org/exllamav3 #141; sgl-project/sglang #38230",
                 .what = "one rank takes a norm's statistic over each part of the row by itself",
                 .layer = FaultLayer::execution,
                 .cause = "statistic_of_shard",
                 .places = norms,
                 .plant = by_parts});
  all.push_back({.name = "norm_of_padded_row",
                 .kind = 'H',
                 .source = "state-spaces/mamba #908",
                 .what = "one rank divides a norm's sum of squares by twice the width",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_divisor",
                 .places = norms,
                 .plant = padded_width});
  all.push_back({.name = "norm_with_other_epsilon",
                 .kind = 'H',
                 .source = "vllm-project/vllm #48324",
                 .what = "one rank's norm has another epsilon",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_divisor",
                 .places = norms,
                 .plant = other_epsilon});
  all.push_back({.name = "heads_normed_together",
                 .kind = 'H',
                 .source = "vllm-project/vllm #16311",
                 .what = "one rank norms all its heads together, not each by itself",
                 .layer = FaultLayer::execution,
                 .cause = "statistic_of_shard",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_op(i, "head_norm");
                       });
                     },
                 .plant = heads_together});
  all.push_back(
      {.name = "statistic_removed_from_plan",
       .kind = 'H',
       .source = "vllm-project/vllm #39298",
       .what = "the plan lacks the sum of a norm's statistic over the ranks that share the row",
       .layer = FaultLayer::plan,
       .cause = "statistic_of_shard",
       .rule = "statistic_over_shard",
       .any_rank = false,
       .places = statistics_summed,
       .plant = statistic_removed});
  all.push_back({.name = "statistic_not_summed",
                 .kind = 'H',
                 .source = "ROCm/ATOM #613",
                 .what = "ranks go on with the sum of squares of their own part of the row",
                 .layer = FaultLayer::collective,
                 .cause = "one_ranks_partial",
                 .any_rank = false,
                 .places = statistics_summed,
                 .plant = statistic_not_summed});
  return all;
}

}  // namespace shardcheck::faults
