// SPDX-License-Identifier: Apache-2.0
#include "sharded/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/error.hpp"
#include "sharded/plan_write.hpp"

namespace shardcheck {
namespace {

/// Matches one alternative-free pattern.
bool matches_plain(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return path.empty();
  if (pattern.front() == '*') {
    for (std::size_t length = 0; length <= path.size(); ++length) {
      if (length > 0 && matches_plain(pattern.substr(1), path.substr(length))) return true;
      if (length < path.size() && path[length] == '.') return false;
    }
    return false;
  }
  return !path.empty() && pattern.front() == path.front() &&
         matches_plain(pattern.substr(1), path.substr(1));
}

/// Expands the first {a,b} and tries each.
bool matches_expanded(const std::string& pattern, std::string_view path) {
  const auto open = pattern.find('{');
  const auto close = open == std::string::npos ? open : pattern.find('}', open);
  if (close == std::string::npos) return matches_plain(pattern, path);
  std::size_t begin = open + 1;
  while (begin <= close) {
    const std::size_t end = std::min(pattern.find(',', begin), close);
    if (matches_expanded(
            pattern.substr(0, open) + pattern.substr(begin, end - begin) + pattern.substr(close + 1),
            path)) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

}  // namespace

Dim activation_dim(PlanDim dim) {
  if (dim == PlanDim::tokens) return Dim::tokens;
  return dim == PlanDim::sequence ? Dim::sequences : Dim::features;
}

std::string to_string(const CollectiveStep& step) {
  const std::string group = step.axes.size() == 1 ? step.axes[0]
                                                  : fmt::format("[{}]", fmt::join(step.axes, ", "));
  switch (step.kind) {
    case CollectiveStep::Kind::all_reduce:
      return fmt::format("all_reduce({}, {})", name(step.op), group);
    case CollectiveStep::Kind::reduce_scatter:
      return fmt::format("reduce_scatter({}, {}, {})", name(step.op), name(step.dim), group);
    case CollectiveStep::Kind::all_gather:
      return fmt::format("all_gather({}, {})", name(step.dim), group);
    case CollectiveStep::Kind::all_to_all:
      return fmt::format("all_to_all({}, {}, {})", name(step.dim), name(step.concat), group);
    case CollectiveStep::Kind::broadcast:
      return fmt::format("broadcast({}, {})", step.root, group);
    case CollectiveStep::Kind::slice:
      return fmt::format("slice({}, {})", name(step.dim), group);
  }
  return "?";
}

bool matches(std::string_view pattern, std::string_view path) {
  return matches_expanded(std::string(strip_prefix(pattern)), strip_prefix(path));
}

const ModulePlacement::AxisCut* ModulePlacement::on(int axis) const {
  for (const AxisCut& cut : cuts) {
    if (cut.axis == axis) return &cut;
  }
  return nullptr;
}

const ModulePlacement& ResolvedPlan::placement(std::string_view module) const {
  const auto found = weights.find(module);
  if (found == weights.end()) throw InputError(fmt::format("the plan knows no module {}", module));
  return found->second;
}

Ranges ResolvedPlan::rows_of(const Module& module, int rank) const {
  const ModulePlacement& at = placement(module.path);
  return at.rows.empty() ? Ranges{{0, module.out}} : at.rows[static_cast<std::size_t>(rank)];
}

Ranges ResolvedPlan::cols_of(const Module& module, int rank) const {
  const ModulePlacement& at = placement(module.path);
  return at.cols.empty() ? Ranges{{0, module.in}} : at.cols[static_cast<std::size_t>(rank)];
}

const std::vector<CollectiveStep>& ResolvedPlan::steps(Phase phase, std::string_view point) const {
  static const std::vector<CollectiveStep> kNone;
  const auto& at = points.at(phase);
  const auto found = at.find(point);
  return found == at.end() ? kNone : found->second;
}

}  // namespace shardcheck
