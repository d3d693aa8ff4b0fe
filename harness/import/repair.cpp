// SPDX-License-Identifier: Apache-2.0
#include "harness/import/repair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sharded/plan_write.hpp"

namespace shardcheck {
namespace {

CutUnit whole_unit(ModuleRole role, bool by_groups) {
  switch (role) {
    case ModuleRole::q:
    case ModuleRole::o:
      return by_groups ? CutUnit::kv_head : CutUnit::head;
    case ModuleRole::qkv:
      return CutUnit::head;
    case ModuleRole::k:
    case ModuleRole::v:
      return CutUnit::kv_head;
    default:
      return CutUnit::row;
  }
}

/// Rows of q, k and v and columns of o have heads; their other dimension has none.
bool has_heads(const WeightCut& cut, ModuleRole role) {
  return cut.dim == (role == ModuleRole::o ? PlanDim::in : PlanDim::out);
}

/// Gathered where it is made, or cut only for the linear that reads it: attention has it whole, wherever the borders are.
bool whole_in_attention(const PlanSection& section, const std::string& pattern, ModuleRole role) {
  const bool output = role == ModuleRole::o;
  const auto kind = output ? CollectiveStep::Kind::slice : CollectiveStep::Kind::all_gather;
  return std::any_of(
      section.collectives.begin(), section.collectives.end(), [&](const CollectiveRule& rule) {
        return rule.pattern == pattern + (output ? ".in" : ".out") &&
               std::any_of(rule.steps.begin(), rule.steps.end(), [&](const CollectiveStep& step) {
                 return step.kind == kind && step.dim == PlanDim::features;
               });
      });
}

std::optional<ModuleRole> role_of(const WeightRule& rule, const ModuleTable& modules) {
  ImportedRule named;
  named.pattern = rule.pattern;
  const std::vector<SelectedModule> selected = modules.select(named);
  if (selected.empty()) return std::nullopt;
  return selected[0].module->sample.role;
}

/// q and o are cut between whole kv heads already, each with the q heads that it serves, and by head a size that is asked
/// for has too many ranks.
bool stay_in_groups(const PlanSection& section, const ModuleTable& modules, const ImportOptions& options) {
  const auto most = std::max_element(options.sizes.begin(), options.sizes.end());
  if (options.model == nullptr || most == options.sizes.end() ||
      *most <= options.model->config().num_heads) {
    return false;
  }
  for (const WeightRule& rule : section.weights) {
    const std::optional<ModuleRole> role = role_of(rule, modules);
    if (role != ModuleRole::q && role != ModuleRole::o) continue;
    for (const auto& [axis, cut] : rule.cuts) {
      const bool groups = cut.unit == CutUnit::kv_head && cut.ranges.empty();
      if (cut.sharded && has_heads(cut, *role) && !groups) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<std::string> repair(PlanSection& section, const ModuleTable& modules,
                                const ImportOptions& options) {
  std::vector<std::string> notes;
  const bool by_groups = stay_in_groups(section, modules, options);
  for (WeightRule& rule : section.weights) {
    const std::optional<ModuleRole> role = role_of(rule, modules);
    if (!role) continue;
    const bool by_head = !whole_in_attention(section, rule.pattern, *role);
    for (auto& [axis, cut] : rule.cuts) {
      if (!cut.sharded || cut.unit == CutUnit::group) continue;
      WeightCut whole{true, cut.dim,
                      by_head && has_heads(cut, *role) ? whole_unit(*role, by_groups) : CutUnit::row,
                      {}};
      if (whole == cut) continue;
      notes.push_back(fmt::format("{}: {} instead of {}", rule.pattern, to_string(whole),
                                  cut.ranges.empty() ? to_string(cut) : "ranges"));
      cut = std::move(whole);
    }
  }
  return notes;
}

}  // namespace shardcheck
