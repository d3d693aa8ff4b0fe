// SPDX-License-Identifier: Apache-2.0
// Kind A, over-reduction: a value that every rank holds whole goes through a sum over ranks.
#include <memory>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/collectives.hpp"

namespace shardcheck::faults {
namespace {

/// Row-parallel linears whose bias is an op of its own, after the sum.
bool sums_before_bias(const Program& program, const Instruction& i) {
  const Module* module = module_of(program, i);
  return is_op(i, "linear") && makes_partial(program, i) && module->has_bias && !i.adds_bias;
}

Tensor with_bias(RankContext& context, const Instruction& instruction, const Tensor& partial) {
  const Module& module = *module_of(context.program(), instruction);
  const Tensor out = context.device().allocate(context.stream(), partial.dtype, partial.rows,
                                               partial.cols);
  // The wire dtype may be another than the weights'.
  Tensor bias = context.weight(module.bias());
  if (bias.dtype != partial.dtype) {
    const Tensor same = context.device().allocate(context.stream(), partial.dtype, bias.rows,
                                                  bias.cols);
    context.device().cast(context.stream(), bias, same);
    bias = same;
  }
  context.device().bias(context.stream(), partial, bias, out);
  return out;
}

std::optional<Planted> bias_on_every_rank(const Program& program, const Spot& spot) {
  Planted planted = change_output(
      spot.place, everyone(program),
      [](RankContext& context, const Instruction& i, std::vector<Tensor>& outputs) {
        outputs[0] = with_bias(context, i, outputs[0]);
      });
  // And not again after the sum.
  const std::string module = at_site(program, spot.phase, spot.place)->module;
  planted.replace = [module](RankContext& context, const Instruction& i,
                             const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
    if (!is_op(i, "bias") || i.module != module) return false;
    outputs = {copy_of(context, inputs[0])};
    return true;
  };
  return planted;
}

std::optional<Planted> bias_once_too_often(const Program&, const Spot& spot) {
  return change_output(spot.place, {spot.rank},
                       [](RankContext& context, const Instruction& i, std::vector<Tensor>& outputs) {
                         outputs[0] = with_bias(context, i, outputs[0]);
                       });
}

/// Row-parallel linears whose sum goes straight into a residual add; the add, and its other operand.
struct Residual {
  const Instruction* sum = nullptr;
  const Instruction* add = nullptr;
  std::size_t other = 0;
};
std::optional<Residual> residual_after(const Program& program, Phase phase, const Instruction& linear) {
  Residual found;
  found.sum = sum_of(program, phase, linear);
  if (found.sum == nullptr || !is_collective(*found.sum, CollectiveStep::Kind::all_reduce))
    return std::nullopt;
  int value = found.sum->outputs[0];
  for (const Instruction* reader : readers(program, phase, value)) {
    if (is_op(*reader, "bias")) value = reader->outputs[0];
  }
  for (const Instruction* reader : readers(program, phase, value)) {
    if (!is_op(*reader, "add")) continue;
    found.add = reader;
    found.other = reader->inputs[0] == value ? 1 : 0;
    // Values of the embedding's own shape only: made before the linear, whole on every rank.
    const Layout& other = program.value(reader->inputs[found.other]).layout;
    if (!other.owned.empty() || other.any_partial()) return std::nullopt;
    for (const Placement& placement : other.placements) {
      if (placement.kind != Placement::Kind::R) return std::nullopt;
    }
    const Instruction* maker = producer(program, phase, reader->inputs[found.other]);
    if (maker == nullptr || maker > &linear) return std::nullopt;  // instructions lie in order
    return found;
  }
  return std::nullopt;
}
std::vector<std::string> before_residuals(const Program& program, Phase phase) {
  return sites(program, phase, [phase](const Program& p, const Instruction& i) {
    return is_op(i, "linear") && makes_partial(p, i) && residual_after(p, phase, i);
  });
}

Planted residual_before_sum(const Program& program, const Spot& spot, std::vector<int> ranks,
                            bool after_too) {
  const Instruction& linear = *at_site(program, spot.phase, spot.place);
  const Residual found = *residual_after(program, spot.phase, linear);
  const int value = found.add->inputs[found.other];
  const auto kept = std::make_shared<std::vector<Tensor>>(
      static_cast<std::size_t>(program.mesh.ranks()));
  Planted planted;
  planted.first = {spot.place, ranks};
  planted.after = [=, place = spot.place](RankContext& context, const Instruction& i,
                                          std::vector<Tensor>& outputs) {
    Tensor& residual = (*kept)[static_cast<std::size_t>(context.rank())];
    for (std::size_t o = 0; o < i.outputs.size(); ++o) {
      if (i.outputs[o] == value) residual = outputs[o];
    }
    if (i.site != place || !holds(ranks, context.rank())) return;
    const Tensor sum = context.device().allocate(context.stream(), outputs[0].dtype,
                                                 outputs[0].rows, outputs[0].cols);
    Tensor term = residual;
    if (term.dtype != sum.dtype) {
      const Tensor same = zeros_like(context, sum);
      context.device().cast(context.stream(), term, same);
      term = same;
    }
    context.device().add(context.stream(), term, outputs[0], sum);
    outputs[0] = sum;
  };
  if (!after_too) {
    planted.replace = [add = found.add->site, keep = 1 - found.other](
                          RankContext& context, const Instruction& i,
                          const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (i.site != add) return false;
      outputs = {copy_of(context, inputs[keep])};
      return true;
    };
  }
  return planted;
}

std::vector<std::string> all_reduced(const Program& program, Phase phase) {
  return sites(program, phase, [](const Program& p, const Instruction& i) {
    return is_collective(i, CollectiveStep::Kind::all_reduce) && i.collective.op == ReduceOp::sum &&
           !p.value(i.outputs[0]).layout.any_partial();
  });
}

std::optional<Planted> reduced_twice(const Program& program, const Spot& spot) {
  return execute_instead(spot.place, everyone(program),
                         [](RankContext& context, const Instruction& i,
                            const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
                           const Tensor once = run_collective(i, context, inputs[0]);
                           return {run_collective(i, context, once)};
                         });
}

/// Modules with steps at their output that leave it whole.
std::vector<std::string> summed_modules(const Program& program, Phase phase) {
  return module_paths(program, [phase](const Program& p, const Module& m) {
    const auto& steps = p.plan.steps(phase, m.path + ".out");
    const Instruction* last = at_site(p, phase, m.path);
    if (steps.empty() || last == nullptr) return false;
    const Layout& layout = p.value(last->outputs[0]).layout;
    return layout.owned.empty() && layout.row_axes.empty() && !layout.any_partial();
  });
}

CollectiveStep sum_over(const Mesh& mesh) {
  CollectiveStep step;
  for (const Mesh::Axis& axis : mesh.axes) {
    if (axis.size > 1 && step.axes.empty()) step.axes = {axis.name};
  }
  return step;
}

std::optional<Planted> reduced_again_by_plan(const Program& program, const Spot& spot) {
  Planted planted;
  planted.edit_plan = [spot](ResolvedPlan& plan) {
    for (auto& [phase, points] : plan.points)
      points[spot.place + ".out"].push_back(sum_over(plan.mesh));
  };
  planted.first = {spot.place, everyone(program)};
  return planted;
}

/// Norms of whole rows.
std::vector<std::string> whole_norms(const Program& program, Phase phase) {
  return module_paths(program, [phase](const Program& p, const Module& m) {
    const Instruction* i = at_site(p, phase, m.path);
    if (i == nullptr || !is_norm(*i) || !p.plan.steps(phase, m.path + ".out").empty()) return false;
    const Layout& layout = p.value(i->outputs[0]).layout;
    return layout.owned.empty() && layout.row_axes.empty();
  });
}

/// An MLP's linears before the row-parallel one: those of its layer that are cut by rows and aren't attention's.
std::optional<Planted> whole_mlp_on_every_rank(const Program& program, const Spot& spot) {
  const Module& down = *program.find_module(spot.place);
  std::vector<std::string> whole{down.path};
  for (const Module& module : program.modules) {
    const bool mlp = module.role == ModuleRole::gate || module.role == ModuleRole::up ||
                     module.role == ModuleRole::fc || module.role == ModuleRole::gate_up;
    if (!mlp || module.layer != down.layer) continue;
    // Its own sum would be the first that is wrong.
    if (cut_by_columns(program, module)) return std::nullopt;
    whole.push_back(module.path);
  }
  Planted planted;
  planted.edit_plan = [whole](ResolvedPlan& plan) {
    for (const std::string& path : whole) plan.weights[path] = {};
  };
  // A bias is added before the sum by each rank, too: the sum is the first wrong value either way.
  planted.first = {spot.place, everyone(program)};
  return planted;
}

std::optional<Planted> averaged(const Program& program, const Spot& spot) {
  const Instruction& i = *at_site(program, spot.phase, spot.place);
  const double size = program.mesh.group_size(i.axes);
  return change_output(spot.place, everyone(program),
                       [size](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
                         outputs[0] = changed(context, outputs[0], [size](auto values, auto) {
                           for (double& value : values) value /= size;
                         });
                       });
}

}  // namespace

std::vector<Fault> over_reduction() {
  std::vector<Fault> all;
  const auto biased = [](const Program& p, Phase phase) { return sites(p, phase, sums_before_bias); };
  all.push_back({.name = "bias_on_every_rank",
                 .kind = 'A',
                 .source = "Wenyueh/MinivLLM #80; huggingface/text-generation-inference #1036",
                 .what = "every rank adds the bias of a row-parallel linear to its partial sum",
                 .layer = FaultLayer::execution,
                 .cause = "bias_times_tp",
                 .any_rank = false,
                 .places = biased,
                 .plant = bias_on_every_rank});
  all.push_back({.name = "bias_once_too_often",
                 .kind = 'A',
                 .source = "PaddlePaddle/FastDeploy #5247",
                 .what = "one rank adds the bias before the sum, and all add it after",
                 .layer = FaultLayer::execution,
                 .cause = "bias_times_tp",
                 .places = biased,
                 .plant = bias_once_too_often});
  all.push_back({.name = "residual_on_every_rank",
                 .kind = 'A',
                 .source = "mirage-project/mirage #722",
                 .what = "every rank adds the residual to its partial sum",
                 .layer = FaultLayer::execution,
                 .cause = "residual_times_tp",
                 .any_rank = false,
                 .places = before_residuals,
                 .plant = [](const Program& p, const Spot& s) -> std::optional<Planted> {
                   return residual_before_sum(p, s, everyone(p), false);
                 }});
  all.push_back({.name = "residual_once_too_often",
                 .kind = 'A',
                 .source = "sgl-project/sglang #8631",
                 .what = "one rank adds the residual before the sum, and all add it after",
                 .layer = FaultLayer::execution,
                 .cause = "residual_times_tp",
                 .places = before_residuals,
                 .plant = [](const Program& p, const Spot& s) -> std::optional<Planted> {
                   return residual_before_sum(p, s, {s.rank}, true);
                 }});
  all.push_back({.name = "reduced_twice",
                 .kind = 'A',
                 .source = "vllm-project/vllm #49122",
                 .what = "a sum over ranks is summed over ranks again",
                 .layer = FaultLayer::collective,
                 .cause = "factor_tp",
                 .any_rank = false,
                 .places = all_reduced,
                 .plant = reduced_twice});
  all.push_back({.name = "reduced_again_by_plan",
                 .kind = 'A',
                 .source = "vllm-project/vllm-ascend #6710",
                 .what = "the plan sums a module's whole output once more",
                 .layer = FaultLayer::plan,
                 .cause = "factor_tp",
                 .rule = "collective_misplaced",
                 .any_rank = false,
                 .places = summed_modules,
                 .plant = reduced_again_by_plan});
  all.push_back({.name = "replicated_value_summed",
                 .kind = 'A',
                 .source = "sgl-project/sglang #31699",
                 .what = "the plan sums a norm's output, which every rank holds whole",
                 .layer = FaultLayer::plan,
                 .cause = "factor_tp",
                 .rule = "collective_misplaced",
                 .any_rank = false,
                 .places = whole_norms,
                 .plant = reduced_again_by_plan});
  all.push_back({.name = "whole_mlp_on_every_rank",
                 .kind = 'A',
                 .source = "lightseekorg/tokenspeed #80",
                 .what = "every rank holds the whole MLP, and the outputs are summed",
                 .layer = FaultLayer::plan,
                 .cause = "factor_tp",
                 .rule = "collective_misplaced",
                 .any_rank = false,
                 .places =
                     [](const Program& program, Phase phase) {
                       return module_paths(program, [phase](const Program& p, const Module& m) {
                         const Instruction* last = at_site(p, phase, m.path);
                         return m.role == ModuleRole::down && cut_by_columns(p, m) &&
                                last != nullptr && !p.plan.steps(phase, m.path + ".out").empty() &&
                                p.plan.steps(phase, m.path + ".out")[0].kind ==
                                    CollectiveStep::Kind::all_reduce;
                       });
                     },
                 .plant = whole_mlp_on_every_rank});
  all.push_back({.name = "averaged_not_summed",
                 .kind = 'A',
                 .source = "NVIDIA/Megatron-LM #5956",
                 .what = "a sum over ranks is divided by their number",
                 .layer = FaultLayer::arithmetic,
                 .cause = "factor_inverse_tp",
                 .any_rank = false,
                 .places = all_reduced,
                 .plant = averaged});
  return all;
}

}  // namespace shardcheck::faults
