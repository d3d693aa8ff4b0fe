// SPDX-License-Identifier: Apache-2.0
// Kind C: rows that are cut over ranks are taken for the same tokens, or the other way round.
#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

using Kind = CollectiveStep::Kind;

bool cuts_tokens(const CollectiveStep& step) {
  return step.dim == PlanDim::tokens || step.dim == PlanDim::sequence;
}

std::optional<Planted> different_tokens_summed(const Program& program, const Spot& spot) {
  Planted planted = execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{run_collective(i, context, rolled_rows(context, inputs[0], 1))};
      });
  const Layout& layout = program.value(at_site(program, spot.phase, spot.place)->outputs[0]).layout;
  planted.first.ranks = everyone(program);
  if (!layout.row_axes.empty())
    return std::nullopt;  // who has which wrong rows depends on the step
  return planted;
}

std::optional<Planted> other_ids(const Program& program, const Spot& spot) {
  Planted planted = change_inputs(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction&, std::vector<Tensor>& inputs) {
        inputs[0] = rolled_cols(context, inputs[0], 1);
      });
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (program.value(site.inputs[0]).name != "ids") return std::nullopt;
  return planted;
}

/// Collectives that join what ranks hold of the tokens.
std::vector<std::string> token_gathers(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program&, const Instruction& i) {
    return is_collective(i, Kind::all_gather) && cuts_tokens(i.collective);
  });
}

std::optional<Planted> gathered_rows_rolled(const Program&, const Spot& spot) {
  return change_output(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         outputs[0] = rolled_rows(context, outputs[0], 1);
                       });
}

/// The plan's gather of tokens before a module is gone.
std::optional<Planted> token_gather_removed(const Program& program, const Spot& spot) {
  Planted planted;
  planted.edit_plan = [point = spot.place](ResolvedPlan& plan) {
    for (auto& [phase, points] : plan.points) points[point].clear();
  };
  // What goes on without being gathered is taken as whole, and judged so: the value before the gather.
  const Instruction* gather = at_site(program, spot.phase, spot.place);
  const std::string module = spot.place.substr(0, spot.place.rfind('.'));
  if (gather != nullptr && readers(program, spot.phase, gather->inputs[0]).size() > 1)
    return std::nullopt;
  planted.first = {gather != nullptr ? program.value(gather->inputs[0]).name : module,
                   everyone(program)};
  return planted;
}

/// A residual that every rank cuts from row 0 on, with the rank's own number of rows.
std::optional<Planted> rows_of_rank_zero(const Program& program, const Spot& spot) {
  if (spot.rank == 0) return std::nullopt;
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  return execute_instead(
      spot.place, {spot.rank},
      [in = site.inputs[0], out = site.outputs[0]](RankContext& context, const Instruction&,
                                                   const std::vector<Tensor>& inputs) {
        static_cast<void>(in);
        const std::int64_t rows = context.extent(out).rows;
        return std::vector<Tensor>{copy_of(context, inputs[0].row_range(0, rows))};
      });
}

}  // namespace

std::vector<Fault> tokens() {
  std::vector<Fault> all;
  all.push_back({.name = "different_tokens_summed",
                 .kind = 'C',
                 .source = "vllm-project/tpu-inference #2248; inclusionAI/AReno #511",
                 .what = "one rank's rows belong to the tokens after the others'",
                 .layer = FaultLayer::collective,
                 .cause = "different_tokens_summed",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase,
                                    [](const Program&, const Instruction& i) { return sums(i); });
                     },
                 .plant = different_tokens_summed});
  all.push_back({.name = "ids_differ_between_ranks",
                 .kind = 'C',
                 .source = "deepspeedai/DeepSpeed #7199; pytorch/pytorch #119343",
                 .what = "one rank is fed the ids of other tokens",
                 .layer = FaultLayer::execution,
                 .cause = "permuted_rows|rows_of_wrong_token",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_op(i, "embedding");
                       });
                     },
                 .plant = other_ids});
  all.push_back({.name = "gathered_tokens_rolled",
                 .kind = 'C',
                 .source = "ROCm/ATOM #1208",
                 .what = "one rank gathers the tokens into other rows",
                 .layer = FaultLayer::collective,
                 .cause = "permuted_rows|rows_of_wrong_rank",
                 .plan = "megatron_sp",
                 .places = token_gathers,
                 .plant = gathered_rows_rolled});
  all.push_back({.name = "token_gather_removed",
                 .kind = 'C',
                 .source = "NVIDIA-NeMo/Megatron-Bridge #5900",
                 .what = "the plan lacks the gather of tokens before a column-parallel linear",
                 .layer = FaultLayer::plan,
                 .cause = "run_ended",
                 .rule = "tokens_into_column_parallel",
                 .any_rank = false,
                 .plan = "megatron_sp",
                 .places =
                     [](const Program& program, Phase phase) {
                       std::vector<std::string> points;
                       for (const Module& module : program.modules) {
                         for (const char* point : {".in", ".out"}) {
                           const auto& steps = program.plan.steps(phase, module.path + point);
                           if (steps.size() == 1 && steps[0].kind == Kind::all_gather &&
                               cuts_tokens(steps[0]))
                             points.push_back(module.path + point);
                         }
                       }
                       return points;
                     },
                 .plant = token_gather_removed});
  all.push_back({.name = "rows_of_rank_zero",
                 .kind = 'C',
                 .source = "vllm-project/vllm #33322",
                 .what = "a rank slices its tokens from row 0 on",
                 .layer = FaultLayer::execution,
                 .cause = "rows_of_wrong_rank",
                 .plan = "megatron_sp",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_collective(i, Kind::slice) && cuts_tokens(i.collective);
                       });
                     },
                 .plant = rows_of_rank_zero});
  return all;
}

}  // namespace shardcheck::faults
