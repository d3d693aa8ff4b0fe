// SPDX-License-Identifier: Apache-2.0
#include "sharded/placement_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {
namespace {

bool any_feature_cut(const Layout& layout) {
  return std::any_of(
      layout.placements.begin(), layout.placements.end(),
      [](const Placement& placement) { return placement == Placement::sharded(Dim::features); });
}

}  // namespace

Layout assume_replicated(Layout layout, const Mesh& mesh, int axis) {
  Placement& placement = layout.placements[static_cast<std::size_t>(axis)];
  if (placement == Placement::sharded(Dim::features))
    return gathered_features(std::move(layout), mesh, {axis});
  if (placement == Placement::sharded(Dim::tokens)) std::erase(layout.token_axes, axis);
  placement = Placement::replicated();
  return layout;
}

Layout gathered_features(Layout layout, const Mesh& mesh, const std::vector<int>& axes) {
  for (const int axis : axes)
    layout.placements[static_cast<std::size_t>(axis)] = Placement::replicated();
  if (!any_feature_cut(layout)) {
    layout.owned.clear();
    layout.may_overlap = false;
    return layout;
  }
  std::vector<Ranges> owned;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Ranges all;
    for (const int member : mesh.group(rank, axes)) {
      const Ranges theirs = layout.feature_ranges(member);
      all.insert(all.end(), theirs.begin(), theirs.end());
    }
    owned.push_back(normalized(std::move(all)));
  }
  layout.owned = std::move(owned);
  return layout;
}

Layout split_features(Layout layout, const Mesh& mesh, const std::vector<int>& axes, std::int64_t unit) {
  std::vector<Ranges> owned;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Ranges whole = layout.feature_ranges(rank);
    const std::vector<int> group = mesh.group(rank, axes);
    const auto at = std::find(group.begin(), group.end(), rank) - group.begin();
    const Partition part = Partition::balanced(total(whole), static_cast<int>(group.size()), unit);
    owned.push_back(compose(whole, part.of(static_cast<int>(at))));
  }
  for (const int axis : axes) {
    layout.placements[static_cast<std::size_t>(axis)] = Placement::sharded(Dim::features);
  }
  layout.owned = std::move(owned);
  return layout;
}

PlacementViolation requires_replicated(const PlaceQuery& query, int input, int axis,
                                       std::string rule, std::string sentence) {
  const Layout& layout = query.inputs[static_cast<std::size_t>(input)];
  const Placement& met = layout.placements[static_cast<std::size_t>(axis)];
  const std::string& axis_name = query.mesh.axes[static_cast<std::size_t>(axis)].name;
  std::string fix;
  if (met.kind == Placement::Kind::P_sum) fix = fmt::format("all_reduce(sum, {})", axis_name);
  if (met.kind == Placement::Kind::P_max) fix = fmt::format("all_reduce(max, {})", axis_name);
  if (met == Placement::sharded(Dim::features))
    fix = fmt::format("all_gather(features, {})", axis_name);
  if (met == Placement::sharded(Dim::tokens))
    fix = fmt::format("all_gather(tokens, {})", axis_name);
  return {std::move(rule),
          input,
          axis,
          Placement::replicated(),
          assume_replicated(layout, query.mesh, axis),
          std::move(sentence),
          std::move(fix)};
}

Placed place_elementwise(const PlaceQuery& query, std::string_view what) {
  Placed placed;
  for (std::size_t axis = 0; axis < query.mesh.axes.size(); ++axis) {
    for (std::size_t input = 0; input < query.inputs.size(); ++input) {
      const Placement& met = query.inputs[input].placements[axis];
      if (met.is_partial()) {
        placed.violations.push_back(requires_replicated(
            query, static_cast<int>(input), static_cast<int>(axis), "partial_into_nonlinear",
            fmt::format("{} of a partial value is not the partial of {}: each rank holds only its "
                        "share of the sum",
                        what, what)));
      } else if (input > 0 && !(met == query.inputs[0].placements[axis])) {
        // The sharded operand is the one to gather.
        const bool first = met.kind == Placement::Kind::R;
        placed.violations.push_back(requires_replicated(
            query, first ? 0 : static_cast<int>(input), static_cast<int>(axis), "placements_differ",
            fmt::format("{} needs its operands placed alike", what)));
      }
    }
  }
  if (!placed.violations.empty()) return placed;
  for (std::size_t input = 1; input < query.inputs.size(); ++input) {
    if (query.inputs[input].owned != query.inputs[0].owned) {
      placed.violations.push_back(
          {"ranges_differ", static_cast<int>(input), 0, query.inputs[0].placements[0],
           query.inputs[0], fmt::format("{} needs both operands cut in the same ranges", what), ""});
      return placed;
    }
  }
  placed.outputs = {query.inputs[0]};
  return placed;
}

Placed place_statistic(const PlaceQuery& query) {
  Placed placed;
  for (std::size_t axis = 0; axis < query.mesh.axes.size(); ++axis) {
    const Placement& met = query.inputs[0].placements[axis];
    if (met.is_partial()) {
      placed.violations.push_back(requires_replicated(
          query, 0, static_cast<int>(axis), "partial_into_nonlinear",
          "a norm of a partial value is not the partial of the norm: reduce it first"));
    } else if (met == Placement::sharded(Dim::features)) {
      placed.violations.push_back(requires_replicated(
          query, 0, static_cast<int>(axis), "statistic_over_shard",
          "a norm's statistic over a shard is not the statistic of the whole row"));
    }
    if (query.weight != nullptr && query.weight->on(static_cast<int>(axis)) != nullptr &&
        placed.violations.empty()) {
      placed.violations.push_back(
          {"statistic_over_shard", 0, static_cast<int>(axis), Placement::replicated(), query.inputs[0],
           "this norm's weight is cut, but its input is whole: don't cut the weight", ""});
    }
  }
  if (placed.violations.empty()) placed.outputs = {query.inputs[0]};
  return placed;
}

bool on_boundaries(const Layout& layout, const Mesh& mesh, std::int64_t unit) {
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    for (const Range& range : layout.feature_ranges(rank)) {
      if (range.begin % unit != 0 || range.end % unit != 0) return false;
    }
  }
  return true;
}

}  // namespace shardcheck
