// SPDX-License-Identifier: Apache-2.0
#include "sharded/plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/error.hpp"
#include "sharded/plan_write.hpp"

namespace shardcheck {
namespace {

/// Positions of a path that the beginning of a pattern can reach, ascending. Following all of them at once keeps the work
/// proportional to pattern times path, however many alternatives a pattern has.
using Positions = std::vector<std::size_t>;

void make_unique(Positions& positions) {
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
}

/// Takes `from` through a stretch of pattern without alternatives.
Positions advance(std::string_view pattern, std::string_view path, Positions from) {
  for (const char c : pattern) {
    Positions to;
    for (const std::size_t at : from) {
      if (c == '*') {
        for (std::size_t end = at; end < path.size() && path[end] != '.';) to.push_back(++end);
      } else if (at < path.size() && path[at] == c) {
        to.push_back(at + 1);
      }
    }
    make_unique(to);
    from = std::move(to);
    if (from.empty()) break;
  }
  return from;
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
  pattern = strip_prefix(pattern);
  path = strip_prefix(path);
  Positions reached{0};
  while (!reached.empty()) {
    const std::size_t open = pattern.find('{');
    const std::size_t close = open == std::string_view::npos ? open : pattern.find('}', open);
    if (close == std::string_view::npos) break;
    reached = advance(pattern.substr(0, open), path, std::move(reached));
    Positions after;
    for (std::size_t begin = open + 1; begin <= close;) {
      const std::size_t end = std::min(pattern.find(',', begin), close);
      const Positions one = advance(pattern.substr(begin, end - begin), path, reached);
      after.insert(after.end(), one.begin(), one.end());
      begin = end + 1;
    }
    make_unique(after);
    reached = std::move(after);
    pattern.remove_prefix(close + 1);
  }
  reached = advance(pattern, path, std::move(reached));
  return !reached.empty() && reached.back() == path.size();
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
