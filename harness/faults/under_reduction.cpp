// SPDX-License-Identifier: Apache-2.0
// Kind B, under-reduction: a partial value goes on as if it were whole, or the sum lacks some ranks.
#include <vector>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

using Kind = CollectiveStep::Kind;

bool sums_whole(const Program&, const Instruction& i) {
  return is_collective(i, Kind::all_reduce) && i.collective.op == ReduceOp::sum;
}

std::vector<std::string> all_reduces(const Program& program, Phase phase) {
  return sites(program, phase, sums_whole);
}

/// Modules whose output is one all_reduce of what the op gives.
std::vector<std::string> all_reduced_modules(const Program& program, Phase phase) {
  return module_paths(program, [phase](const Program& p, const Module& m) {
    const auto& steps = p.plan.steps(phase, m.path + ".out");
    return steps.size() == 1 && steps[0].kind == Kind::all_reduce &&
           p.mesh.group_size({p.mesh.axis_index(steps[0].axes[0])}) > 1;
  });
}
/// Modules whose output ends in a gather of features.
std::vector<std::string> gathered_modules(const Program& program, Phase phase) {
  return module_paths(program, [phase](const Program& p, const Module& m) {
    const auto& steps = p.plan.steps(phase, m.path + ".out");
    return steps.size() == 1 && steps[0].kind == Kind::all_gather && cut_by_rows(p, m);
  });
}

using StepEdit = std::function<void(std::vector<CollectiveStep>&)>;
/// Changes the steps of a module's output, in one phase or in both.
Planted edit_steps(const Program& program, const std::string& point, std::optional<Phase> only,
                   const StepEdit& edit, const std::string& tap) {
  Planted planted;
  planted.edit_plan = [=](ResolvedPlan& plan) {
    for (auto& [phase, points] : plan.points) {
      if (!only || *only == phase) edit(points[point]);
    }
  };
  planted.first = {tap, everyone(program)};
  return planted;
}

std::optional<Planted> removed(const Program& program, const Spot& spot) {
  return edit_steps(
      program, spot.place + ".out", std::nullopt, [](auto& steps) { steps.clear(); }, spot.place);
}
std::optional<Planted> removed_in_decode(const Program& program, const Spot& spot) {
  return edit_steps(
      program, spot.place + ".out", Phase::decode, [](auto& steps) { steps.clear(); }, spot.place);
}
std::optional<Planted> maximum(const Program& program, const Spot& spot) {
  return edit_steps(
      program, spot.place + ".out", std::nullopt, [](auto& steps) { steps[0].op = ReduceOp::max; },
      after_steps(program, spot.phase, spot.place));
}
std::optional<Planted> broadcast(const Program& program, const Spot& spot) {
  const int root = spot.rank;
  return edit_steps(
      program, spot.place + ".out", std::nullopt,
      [root](auto& steps) {
        CollectiveStep step;
        step.kind = Kind::broadcast;
        step.root = root;
        step.axes = steps[0].axes;
        steps = {step};
      },
      after_steps(program, spot.phase, spot.place));
}
std::optional<Planted> scattered(const Program& program, const Spot& spot) {
  // A bias would go on with the rank's part, and leave the rest of a forced run's value as fresh memory was.
  const std::string tap = after_steps(program, spot.phase, spot.place);
  if (tap != spot.place) return std::nullopt;
  return edit_steps(
      program, spot.place + ".out", std::nullopt,
      [](auto& steps) {
        steps[0].kind = Kind::reduce_scatter;
        steps[0].dim = PlanDim::features;
      },
      tap);
}

/// An MLP's first linear cut along its input, with nothing that sums it: the activation sees a partial.
std::optional<Planted> activation_on_partial(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const ModulePlacement& placement = program.plan.placement(module.path);
  Planted planted;
  planted.edit_plan = [path = module.path, in = module.in,
                       axis = placement.cuts[0].axis](ResolvedPlan& plan) {
    ModulePlacement& now = plan.weights[path];
    now = {};
    now.cuts = {{axis, false}};
    const int size = plan.mesh.axes[static_cast<std::size_t>(axis)].size;
    const Partition cut = Partition::balanced(in, size);
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank)
      now.cols.push_back(cut.of(plan.mesh.coordinates(rank)[static_cast<std::size_t>(axis)]));
    CollectiveStep step;
    step.kind = Kind::slice;
    step.dim = PlanDim::features;
    step.axes = {plan.mesh.axes[static_cast<std::size_t>(axis)].name};
    for (auto& [phase, points] : plan.points) points[path + ".in"] = {step};
  };
  planted.first = {spot.place, everyone(program)};
  return planted;
}

std::optional<Planted> keeps_its_partial(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor sum = run_collective(i, context, inputs[0]);
        Tensor own = copy_of(context, sum);
        if (inputs[0].dtype == own.dtype) {
          context.device().copy(context.stream(), inputs[0], own);
        } else {
          context.device().cast(context.stream(), inputs[0], own);
        }
        return std::vector<Tensor>{own};
      });
}

/// The sum runs over ranks below the middle for those, over the others for the rest.
std::optional<Planted> half_group(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (program.mesh.group_size(site.axes) < 4 || program.mesh.axes.size() > 1) return std::nullopt;
  return execute_instead(
      spot.place, everyone(program),
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const int middle = context.program().mesh.ranks() / 2;
        const bool low = context.rank() < middle;
        const Tensor none = zeros_like(context, inputs[0]);
        const Tensor lower = run_collective(i, context, low ? inputs[0] : none);
        const Tensor upper = run_collective(i, context, low ? none : inputs[0]);
        return std::vector<Tensor>{low ? lower : upper};
      });
}

std::optional<Planted> contributes(const Program& program, const Spot& spot, bool twice) {
  Planted planted = execute_instead(
      spot.place, {spot.rank},
      [twice](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        const Tensor part = twice ? doubled(context, inputs[0]) : zeros_like(context, inputs[0]);
        return std::vector<Tensor>{run_collective(i, context, part)};
      });
  planted.first.ranks = everyone(program);  // who see the sum
  return planted;
}

std::optional<Planted> bias_left_out(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (is_op(site, "bias")) {
    return execute_instead(
        spot.place, {spot.rank},
        [](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
          return std::vector<Tensor>{copy_of(context, inputs[0])};
        });
  }
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        Instruction plain = i;
        plain.adds_bias = false;
        return run_plainly(context, plain, inputs);
      });
}

}  // namespace

std::vector<Fault> under_reduction() {
  std::vector<Fault> all;
  all.push_back({.name = "all_reduce_removed",
                 .kind = 'B',
                 .source = "vllm-project/tpu-inference #3435",
                 .what = "the plan lacks the all_reduce after a module",
                 .layer = FaultLayer::plan,
                 .cause = "one_ranks_partial|shard_dropped",
                 .rule = "partial_into_nonlinear|partial_plus_replicated|partial_into_column_"
                         "parallel|bias_on_partial|output_not_replicated",
                 .any_rank = false,
                 .places = all_reduced_modules,
                 .plant = removed});
  all.push_back({.name = "all_reduce_removed_in_decode",
                 .kind = 'B',
                 .source = "ROCm/aiter #2586",
                 .what = "the plan lacks the all_reduce in decode only",
                 .layer = FaultLayer::plan,
                 .cause = "one_ranks_partial|shard_dropped",
                 .rule = "partial_into_nonlinear|partial_plus_replicated|partial_into_column_"
                         "parallel|bias_on_partial|output_not_replicated",
                 .phase = Phase::decode,
                 .any_rank = false,
                 // A table's shares are whole for the tokens that a rank owns: who is wrong depends on the ids.
                 .places =
                     [](const Program& p, Phase phase) {
                       std::vector<std::string> places = all_reduced_modules(p, phase);
                       std::erase_if(places, [&](const std::string& path) {
                         return p.find_module(path)->kind == ModuleKind::embedding;
                       });
                       return places;
                     },
                 .plant = removed_in_decode});
  all.push_back({.name = "gather_removed",
                 .kind = 'B',
                 .source = "huggingface/transformers #37893",
                 .what = "the plan lacks the all_gather after a column-parallel module",
                 .layer = FaultLayer::plan,
                 .cause = "run_ended",
                 .rule = "output_not_replicated|sum_over_shard|placements_differ",
                 .any_rank = false,
                 .places = gathered_modules,
                 .plant = removed});
  all.push_back(
      {.name = "maximum_for_sum",
       .kind = 'B',
       .source = "vllm-project/vllm #47079",
       .what = "the plan takes the largest of the ranks' partials, where they must be summed",
       .layer = FaultLayer::plan,
       .cause = "reduced_as_maximum",
       .rule = "collective_misplaced",
       .any_rank = false,
       .places = all_reduced_modules,
       .plant = maximum});
  all.push_back({.name = "broadcast_for_sum",
                 .kind = 'B',
                 .source = "pytorch/pytorch #191992",
                 .what = "the plan hands out one rank's partial instead of the sum",
                 .layer = FaultLayer::plan,
                 .cause = "one_ranks_partial",
                 .rule = "collective_misplaced",
                 .places = all_reduced_modules,
                 .plant = broadcast});
  all.push_back({.name = "scattered_and_not_gathered",
                 .kind = 'B',
                 .source = "sgl-project/sglang #31699",
                 .what = "the plan scatters a sum and never gathers it",
                 .layer = FaultLayer::plan,
                 .cause = "run_ended",
                 .rule = "placements_differ|statistic_over_shard|sum_over_shard|output_not_"
                         "replicated|ranges_differ",
                 .any_rank = false,
                 .places = all_reduced_modules,
                 .plant = scattered});
  all.push_back({.name = "activation_on_partial",
                 .kind = 'B',
                 .source = "vllm-project/vllm-ascend #14345",
                 .what = "a linear is cut along its input and its partial goes into the activation",
                 .layer = FaultLayer::plan,
                 .cause = "one_ranks_partial",
                 .rule = "partial_into_nonlinear",
                 .any_rank = false,
                 .places =
                     [](const Program& program, Phase phase) {
                       return module_paths(program, [phase](const Program& p, const Module& m) {
                         const bool first = m.role == ModuleRole::gate || m.role == ModuleRole::fc;
                         const Instruction* i = at_site(p, phase, m.path);
                         return first && cut_by_rows(p, m) && i != nullptr && !m.has_bias &&
                                p.value(i->inputs[0]).layout.owned.empty() &&
                                p.plan.steps(phase, m.path + ".in").empty();
                       });
                     },
                 .plant = activation_on_partial});
  all.push_back({.name = "one_rank_keeps_its_partial",
                 .kind = 'B',
                 .source = "vllm-project/tpu-inference #3435",
                 .what = "one rank goes on with its own partial, the others with the sum",
                 .layer = FaultLayer::collective,
                 .cause = "one_ranks_partial",
                 .places = all_reduces,
                 .plant = keeps_its_partial});
  all.push_back({.name = "summed_over_half_the_group",
                 .kind = 'B',
                 .source = "sgl-project/sglang #32963",
                 .what = "the sum runs over half of the ranks",
                 .layer = FaultLayer::collective,
                 .cause = "reduced_over_wrong_group|one_ranks_partial|shard_dropped",
                 .any_rank = false,
                 .places = all_reduces,
                 .plant = half_group});
  all.push_back({.name = "rank_contributes_nothing",
                 .kind = 'B',
                 .source = "vllm-project/vllm-gaudi #1796",
                 .what = "one rank gives zeros to the sum",
                 .layer = FaultLayer::collective,
                 .cause = "shard_dropped|one_ranks_partial",
                 .places = all_reduces,
                 .plant = [](const Program& p, const Spot& s) { return contributes(p, s, false); }});
  all.push_back({.name = "rank_counted_twice",
                 .kind = 'B',
                 .source = "sgl-project/sglang #20967",
                 .what = "one rank's share stands in the sum twice",
                 .layer = FaultLayer::collective,
                 .cause = "shard_doubled",
                 .places = all_reduces,
                 .plant = [](const Program& p, const Spot& s) { return contributes(p, s, true); }});
  all.push_back({.name = "bias_left_out",
                 .kind = 'B',
                 .source = "awslabs/slapo #10",
                 .what = "one rank doesn't add the bias",
                 .layer = FaultLayer::execution,
                 .cause = "bias_missing",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_op(i, "bias") || (is_op(i, "linear") && i.adds_bias);
                       });
                     },
                 .plant = bias_left_out});
  return all;
}

}  // namespace shardcheck::faults
