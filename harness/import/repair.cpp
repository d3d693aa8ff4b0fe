// SPDX-License-Identifier: Apache-2.0
#include "harness/import/repair.hpp"

#include <fmt/format.h>

#include "sharded/plan_write.hpp"

namespace shardcheck {
namespace {

CutUnit whole_unit(ModuleRole role) {
  switch (role) {
    case ModuleRole::q:
    case ModuleRole::qkv:
    case ModuleRole::o:
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

}  // namespace

std::vector<std::string> repair(PlanSection& section, const ModuleTable& modules) {
  std::vector<std::string> notes;
  for (WeightRule& rule : section.weights) {
    ImportedRule named;
    named.pattern = rule.pattern;
    const std::vector<SelectedModule> selected = modules.select(named);
    if (selected.empty()) continue;
    const ModuleRole role = selected[0].module->sample.role;
    for (auto& [axis, cut] : rule.cuts) {
      if (!cut.sharded || cut.unit == CutUnit::group) continue;
      WeightCut whole{true, cut.dim, has_heads(cut, role) ? whole_unit(role) : CutUnit::row, {}};
      if (whole == cut) continue;
      notes.push_back(fmt::format("{}: {} instead of {}", rule.pattern, to_string(whole),
                                  cut.ranges.empty() ? to_string(cut) : "ranges"));
      cut = std::move(whole);
    }
  }
  return notes;
}

}  // namespace shardcheck
