// SPDX-License-Identifier: Apache-2.0
// Kind G: parameters with an entry per head, or per feature of all heads, that don't go with their heads.
#include "harness/faults/kinds.hpp"
#include "harness/faults/slices.hpp"

namespace shardcheck::faults {
namespace {

bool is_head_role(ModuleRole role) {
  return role == ModuleRole::q || role == ModuleRole::k || role == ModuleRole::v ||
         role == ModuleRole::qkv;
}
bool is_head_norm(const Module& module) {
  return module.role == ModuleRole::q_norm || module.role == ModuleRole::k_norm;
}

/// Ranks use the entries of rank 0's heads.
std::optional<Planted> first_heads_entries(const Program& program, const Spot& spot, bool bias) {
  const Module& module = *program.find_module(spot.place);
  std::map<int, Ranges> rows;
  for (int rank = 1; rank < program.mesh.ranks(); ++rank) {
    const Ranges first = rows_of(program, module, 0);
    if (total(first) == total(rows_of(program, module, rank))) rows[rank] = first;
  }
  return wrong_rows(program, spot, bias, rows);
}

/// One vector for every head, cut as if it went with the heads.
std::optional<Planted> shared_vector_cut(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  int axis = -1;
  for (std::size_t i = 0; i < program.mesh.axes.size(); ++i) {
    if (program.mesh.axes[i].size > 1 && axis < 0) axis = static_cast<int>(i);
  }
  if (axis < 0) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, features = module.out, axis](ResolvedPlan& plan) {
    ModulePlacement& placement = plan.weights[path];
    placement = {};
    placement.cuts = {{axis, true}};
    const Partition cut = Partition::balanced(features,
                                              plan.mesh.axes[static_cast<std::size_t>(axis)].size);
    for (int rank = 0; rank < plan.mesh.ranks(); ++rank)
      placement.rows.push_back(cut.of(plan.mesh.coordinates(rank)[static_cast<std::size_t>(axis)]));
  };
  planted.first = {module.path, everyone(program)};
  return planted;
}

/// A vector over all heads that every rank keeps whole, beside heads that are cut.
std::optional<Planted> heads_vector_whole(const Program& program, const Spot& spot) {
  Planted planted;
  planted.edit_plan = [path = spot.place](ResolvedPlan& plan) { plan.weights[path] = {}; };
  planted.first = planted.differs.emplace(WrongTap{spot.place, everyone(program)});
  for (const Instruction& i : program.instructions.at(spot.phase)) {
    if (is_op(i, "rms_statistic") && i.module == spot.place) planted.first.tap = i.site;
  }
  return planted;
}

}  // namespace

std::vector<Fault> per_head_parameters() {
  std::vector<Fault> all;
  all.push_back(
      {.name = "bias_of_first_heads",
       .kind = 'G',
       .source = "OpenNMT/CTranslate2 #1708",
       .what = "every rank adds the bias of rank 0's heads",
       .layer = FaultLayer::loader,
       .cause = "weight_of_wrong_rank|kv_head_of_neighbour",
       .any_rank = false,
       .places =
           [](const Program& program, Phase) {
             return module_paths(program, [](const Program& p, const Module& m) {
               return is_head_role(m.role) && m.has_bias && cut_by_rows(p, m);
             });
           },
       .plant = [](const Program& p, const Spot& s) { return first_heads_entries(p, s, true); }});
  all.push_back(
      {.name = "norm_of_first_heads",
       .kind = 'G',
       .source = "flashinfer-ai/flashinfer #1606",
       .what = "every rank uses the part of a q or k norm's weight that belongs to rank 0's heads",
       .layer = FaultLayer::loader,
       .cause = "weight_of_wrong_rank",
       .any_rank = false,
       .places =
           [](const Program& program, Phase) {
             return module_paths(program, [](const Program& p, const Module& m) {
               return is_head_norm(m) && cut_by_rows(p, m);
             });
           },
       .plant = [](const Program& p, const Spot& s) { return first_heads_entries(p, s, false); }});
  all.push_back({.name = "shared_vector_cut",
                 .kind = 'G',
                 .source = "pie-project/pie #272",
                 .what = "the plan cuts a norm's weight of head_dim entries, which every head uses",
                 .layer = FaultLayer::partition,
                 .cause = "run_ended",
                 .rule = "head_parameter_is_cut",
                 .any_rank = false,
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return is_head_norm(m) && m.out == p.config.head_dim && !cut_by_rows(p, m);
                       });
                     },
                 .plant = shared_vector_cut});
  all.push_back({.name = "heads_vector_whole",
                 .kind = 'G',
                 .source = "vllm-project/vllm-omni #4439; huggingface/transformers #44668",
                 .what = "the plan keeps a vector over all heads whole beside heads that are cut",
                 .layer = FaultLayer::partition,
                 .cause = "run_ended|statistic_of_shard|shape_differs",
                 .rule = "head_parameter_not_cut",
                 .any_rank = false,
                 .places =
                     [](const Program& program, Phase) {
                       return module_paths(program, [](const Program& p, const Module& m) {
                         return is_head_norm(m) && m.out != p.config.head_dim && cut_by_rows(p, m);
                       });
                     },
                 .plant = heads_vector_whole});
  return all;
}

}  // namespace shardcheck::faults
