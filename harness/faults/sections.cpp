// SPDX-License-Identifier: Apache-2.0
// Kind D: a fused weight (q | k | v, gate | up) is cut across the borders of its sections, or they are taken for one another.
#include <algorithm>

#include "harness/faults/kinds.hpp"
#include "harness/faults/slices.hpp"
#include "harness/faults/tensors.hpp"

namespace shardcheck::faults {
namespace {

std::vector<std::string> fused_modules(const Program& program, Phase) {
  return module_paths(program, [](const Program& p, const Module& m) {
    return !m.sections.empty() && cut_by_rows(p, m);
  });
}

/// Rank r's share of the rows as one block, with as many rows as it should have.
std::optional<std::map<int, Ranges>> blocks(const Program& program, const Module& module) {
  std::map<int, Ranges> rows;
  std::int64_t at = 0;
  for (int rank = 0; rank < program.mesh.ranks(); ++rank) {
    const std::int64_t count = total(rows_of(program, module, rank));
    if (at + count > module.out) return std::nullopt;  // kv heads that several ranks hold
    rows[rank] = {{at, at + count}};
    at += count;
  }
  return rows;
}

std::optional<Planted> cut_as_one_block(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const auto rows = blocks(program, module);
  if (!rows || program.mesh.axes.size() > 1) return std::nullopt;
  return wrong_rows(program, spot, false, *rows);
}

std::optional<Planted> planned_as_one_block(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const auto rows = blocks(program, module);
  if (!rows || program.mesh.axes.size() > 1) return std::nullopt;
  if (module.sections[0].role == ModuleRole::gate && program.mesh.ranks() < 2) return std::nullopt;
  Planted planted;
  planted.edit_plan = [path = module.path, rows = *rows](ResolvedPlan& plan) {
    ModulePlacement& placement = plan.weights[path];
    for (const auto& [rank, ranges] : rows) placement.rows[static_cast<std::size_t>(rank)] = ranges;
  };
  planted.first.tap = module.path;
  planted.first.ranks = ranks_where(
      program, [&](int rank) { return rows->at(rank) != rows_of(program, module, rank); });
  return planted;
}

/// Two sections' rows of one rank change places. k and v, or gate and up: sections of one size.
std::optional<Planted> sections_exchanged(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  std::vector<Ranges> parts = by_section(module, rows_of(program, module, spot.rank));
  const std::size_t last = parts.size() - 1;
  if (parts[last].empty() || total(parts[last]) != total(parts[last - 1])) return std::nullopt;
  std::swap(parts[last], parts[last - 1]);
  Ranges rows;
  for (const Ranges& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return wrong_rows(program, spot, false, {{spot.rank, rows}});
}

/// The checkpoint is read as if its rows were interleaved head by head: [q0 k0 v0 | q1 k1 v1 | ...].
std::optional<Planted> read_as_interleaved(const Program& program, const Spot& spot) {
  const Module& module = *program.find_module(spot.place);
  const std::int64_t unit = module.sections[0].role == ModuleRole::q ? program.config.head_dim : 1;
  std::vector<Ranges> parts = by_section(module, rows_of(program, module, spot.rank));
  std::vector<std::vector<Range>> units(parts.size());
  for (std::size_t s = 0; s < parts.size(); ++s) {
    for (const Range& range : parts[s]) {
      for (std::int64_t at = range.begin; at < range.end; at += unit)
        units[s].push_back({at, at + unit});
    }
  }
  Ranges rows;
  for (std::size_t i = 0; i < units[0].size(); ++i) {
    for (const auto& section : units) {
      if (i < section.size()) rows.push_back(section[i]);
    }
  }
  if (normalized(rows) == rows_of(program, module, spot.rank) && units[0].size() < 2)
    return std::nullopt;
  return wrong_rows(program, spot, false, {{spot.rank, rows}});
}

/// Two separate modules of one block hold each other's weights on one rank.
std::optional<Planted> modules_exchanged(const Program& program, const Spot& spot,
                                         ModuleRole other_role, bool biases) {
  const Module& module = *program.find_module(spot.place);
  const Module* other = nullptr;
  for (const Module& m : program.modules) {
    if (m.role == other_role && m.layer == module.layer) other = &m;
  }
  if (other == nullptr || other->has_bias != module.has_bias) return std::nullopt;
  if (rows_of(program, module, spot.rank) != rows_of(program, *other, spot.rank))
    return std::nullopt;
  Planted planted;
  planted.first = {site_of(program, spot.phase, module), {spot.rank}};
  planted.prepare = [a = module, b = *other, rank = spot.rank, biases](RankContext& context) {
    if (context.rank() != rank) return;
    const Tensor first = context.weight(a.weight()), second = context.weight(b.weight());
    context.set_weight(a.weight(), second);
    context.set_weight(b.weight(), first);
    if (!biases || !a.has_bias) return;
    const Tensor first_bias = context.weight(a.bias()), second_bias = context.weight(b.bias());
    context.set_weight(a.bias(), second_bias);
    context.set_weight(b.bias(), first_bias);
  };
  return planted;
}

/// A section of the local output begins one column late, as where padding moved the border.
std::optional<Planted> border_moved(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const Layout& whole = program.value(site.inputs[0]).layout;
  const auto begin = static_cast<std::int64_t>(site.attributes.at("begin"));
  const auto end = static_cast<std::int64_t>(site.attributes.at("end"));
  const Ranges local = locate(whole.feature_ranges(spot.rank), {{begin, end}});
  if (local.size() != 1 || local[0].size() < 2) return std::nullopt;
  const std::int64_t cols = whole.local_features(spot.rank);
  const std::int64_t by = local[0].end < cols ? 1 : -1;
  const Range moved{local[0].begin + by, local[0].end + by};
  if (moved.begin < 0) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [moved](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{copy_of(context, inputs[0].col_range(moved.begin, moved.end))};
      });
}

std::vector<std::string> with_role(const Program& program, ModuleRole role) {
  return module_paths(program, [role](const Program&, const Module& m) { return m.role == role; });
}

}  // namespace

std::vector<Fault> sections() {
  std::vector<Fault> all;
  all.push_back({.name = "fused_planned_as_one_block",
                 .kind = 'D',
                 .source = "vllm-project/vllm #3775; hpcaitech/ColossalAI #817",
                 .what = "the plan cuts a fused weight into blocks of rows, across its sections",
                 .layer = FaultLayer::section,
                 .cause = "permuted_sections|weight_differs",
                 .rule = "section_is_cut",
                 .any_rank = false,
                 .places = fused_modules,
                 .plant = planned_as_one_block});
  all.push_back({.name = "fused_loaded_as_one_block",
                 .kind = 'D',
                 .source = "sgl-project/sglang #34529; mindspore-ai/hyper-parallel #77",
                 .what = "loaders cut a fused weight into blocks of rows of the right size",
                 .layer = FaultLayer::loader,
                 .cause = "permuted_sections|weight_differs",
                 .any_rank = false,
                 .places = fused_modules,
                 .plant = cut_as_one_block});
  all.push_back(
      {.name = "sections_exchanged",
       .kind = 'D',
       .source = "sgl-project/sglang #24321; bigscience-workshop/Megatron-DeepSpeed #338",
       .what = "one rank loads the last two sections of a fused weight in each other's place",
       .layer = FaultLayer::loader,
       .cause = "permuted_sections",
       .places = fused_modules,
       .plant = sections_exchanged});
  all.push_back({.name = "read_as_interleaved",
                 .kind = 'D',
                 .source = "vllm-project/vllm #42803; vllm-project/vllm #36242",
                 .what = "one rank takes the sections' rows in turns, head by head or row by row",
                 .layer = FaultLayer::loader,
                 .cause = "permuted_rows|permuted_sections",
                 .places = fused_modules,
                 .plant = read_as_interleaved});
  all.push_back({.name = "gate_and_up_exchanged",
                 .kind = 'D',
                 .source = "deepspeedai/DeepSpeed #3932",
                 .what = "one rank holds gate's weight as up's and up's as gate's",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_module",
                 .places = [](const Program& p, Phase) { return with_role(p, ModuleRole::gate); },
                 .plant = [](const Program& p,
                             const Spot& s) { return modules_exchanged(p, s, ModuleRole::up, true); }});
  all.push_back({.name = "k_and_v_exchanged",
                 .kind = 'D',
                 .source = "sgl-project/sglang #24321",
                 .what = "one rank holds k's weight as v's and v's as k's",
                 .layer = FaultLayer::loader,
                 .cause = "weight_of_wrong_module",
                 .places = [](const Program& p, Phase) { return with_role(p, ModuleRole::k); },
                 .plant = [](const Program& p,
                             const Spot& s) { return modules_exchanged(p, s, ModuleRole::v, true); }});
  all.push_back({.name = "section_border_moved",
                 .kind = 'D',
                 .source = "vllm-project/vllm #48624",
                 .what = "one rank splits a fused output one column off the border",
                 .layer = FaultLayer::execution,
                 .cause = "permuted_rows",
                 .places =
                     [](const Program& p, Phase phase) {
                       return sites(p, phase, [](const Program&, const Instruction& i) {
                         return is_op(i, "split");
                       });
                     },
                 .plant = border_moved});
  return all;
}

}  // namespace shardcheck::faults
