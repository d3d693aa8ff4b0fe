// SPDX-License-Identifier: Apache-2.0
#include "sharded/placement_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sharded/partition_rules.hpp"

namespace shardcheck {
namespace {

bool any_feature_cut(const Layout& layout) {
  return std::any_of(
      layout.placements.begin(), layout.placements.end(),
      [](const Placement& placement) { return placement == Placement::sharded(Dim::features); });
}

/// A norm of a part of the row: gathered, or, of RMSNorm, its sum of squares made by the ranks together. That is what
/// norms of q and k are for, whose heads stay where they are.
PlacementViolation over_shard(const PlaceQuery& query, int axis) {
  PlacementViolation violation = requires_replicated(
      query, 0, axis, "statistic_over_shard",
      "a norm's statistic over a shard is not the statistic of the whole row");
  if (query.module == nullptr || query.node.op != "rms_norm") return violation;
  const std::string& name = query.mesh.axes[static_cast<std::size_t>(axis)].name;
  std::string fix = fmt::format("\"{}.stat\": \"all_reduce(sum, {})\"", query.module->path, name);
  if (query.weight != nullptr && query.weight->on(axis) == nullptr) {
    fix += fmt::format(", and in weights {}", cut_entry(*query.module, true, name));
  }
  violation.others.push_back({0, Placement::replicated(), {query.inputs[0]}, std::move(fix)});
  const ModuleRole role = query.module->role;
  if (role == ModuleRole::q_norm || role == ModuleRole::k_norm) {
    violation.preferred = 1;
    violation.sentence = "its statistic is over all heads, and each rank has only some: sum the squares over the ranks, "
                         "or gather the heads";
  }
  return violation;
}

}  // namespace

Layout assume_replicated(Layout layout, const Mesh& mesh, int axis) {
  Placement& placement = layout.placements[static_cast<std::size_t>(axis)];
  if (placement == Placement::sharded(Dim::features))
    return gathered_features(std::move(layout), mesh, {axis});
  if (placement.cuts_rows()) std::erase(layout.row_axes, axis);
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
  return {std::move(rule),
          input,
          axis,
          Placement::replicated(),
          assume_replicated(layout, query.mesh, axis),
          std::move(sentence),
          std::string(met.kind == Placement::Kind::R ? "" : kRepairStep),
          {},
          0};
}

std::optional<PlacementViolation> operands_differ(const PlaceQuery& query, int axis, std::string_view what) {
  const auto i = static_cast<std::size_t>(axis);
  const std::string needs = fmt::format("{} needs its operands placed alike", what);
  for (std::size_t at = 1; at < query.inputs.size(); ++at) {
    const auto input = static_cast<int>(at);
    const Layout &first = query.inputs[0], &other = query.inputs[at];
    const Placement &a = first.placements[i], &b = other.placements[i];
    if (a == b) continue;
    if (a.kind != Placement::Kind::R && b.kind != Placement::Kind::R) {
      const bool rows = a.cuts_rows() || b.cuts_rows();
      return PlacementViolation{rows ? "tokens_differ" : "placements_differ", input, axis, a, first, needs, "", {}, 0};
    }
    // One is whole: it is sliced, or the other gathered.
    const bool first_is_cut = a.kind == Placement::Kind::S;
    const Layout& cut = first_is_cut ? first : other;
    const Placement& placement = first_is_cut ? a : b;
    const int cut_input = first_is_cut ? 0 : input, whole_input = first_is_cut ? input : 0;
    PlacementViolation gathered = requires_replicated(query, cut_input, axis, "placements_differ", needs);
    if (placement.cuts_rows()) {
      gathered.rule = "tokens_differ";
      gathered.sentence = fmt::format("{} of values for different tokens: one operand has all tokens on every rank, "
                                      "the other only some",
                                      what);
    }
    gathered.others.push_back({whole_input, placement, {cut}, std::string(kRepairStep)});
    gathered.preferred = first_is_cut && placement.cuts_rows() ? 1 : 0;
    return gathered;
  }
  return std::nullopt;
}

Layout cut_by_heads(Layout layout, const Config& config, const Mesh& mesh, int axis) {
  for (std::size_t other = 0; other < layout.placements.size(); ++other) {
    if (other != static_cast<std::size_t>(axis) && layout.placements[other].cuts_features()) return layout;
  }
  const bool kv = layout.features == config.kv_size() && config.num_kv_heads != config.num_heads;
  const Partition heads = Partition::balanced(kv ? config.q_size() : layout.features,
                                              mesh.axes[static_cast<std::size_t>(axis)].size, config.head_dim);
  layout.placements[static_cast<std::size_t>(axis)] = Placement::sharded(Dim::features);
  layout.owned.clear();
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const Ranges& mine = heads.of(mesh.coordinates(rank)[static_cast<std::size_t>(axis)]);
    layout.owned.push_back(kv ? kv_rows_for(config, mine) : mine);
  }
  layout.may_overlap = kv;
  return layout;
}

namespace {

/// The first head that a rank has a part of.
std::string cut_head_sentence(const Layout& layout, const Mesh& mesh, std::int64_t head_dim) {
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    for (const Range& range : layout.feature_ranges(rank)) {
      const bool begins = range.begin % head_dim != 0;
      const std::int64_t border = begins ? range.begin : range.end;
      if (border % head_dim == 0) continue;
      const std::int64_t head = border / head_dim;
      return fmt::format("rank {} has features {} to {}, so its range {} inside a head: head {} is features {} to {}; "
                         "cut by head",
                         rank, range.begin, range.end - 1, begins ? "begins" : "ends", head, head * head_dim,
                         (head + 1) * head_dim - 1);
    }
  }
  return "";
}

}  // namespace

PlacementViolation head_is_cut(const PlaceQuery& query, int input, int axis, std::int64_t head_dim,
                               std::vector<Layout> outputs) {
  PlacementViolation violation = requires_replicated(
      query, input, axis, "head_is_cut",
      cut_head_sentence(query.inputs[static_cast<std::size_t>(input)], query.mesh, head_dim));
  violation.others.push_back({input, Placement::sharded(Dim::features), std::move(outputs), std::string(kRecut)});
  return violation;
}

Placed place_elementwise(const PlaceQuery& query, std::string_view what) {
  Placed placed;
  for (std::size_t axis = 0; axis < query.mesh.axes.size(); ++axis) {
    bool partial = false;
    for (std::size_t input = 0; input < query.inputs.size(); ++input) {
      if (!query.inputs[input].placements[axis].is_partial()) continue;
      partial = true;
      placed.violations.push_back(requires_replicated(
          query, static_cast<int>(input), static_cast<int>(axis), "partial_into_nonlinear",
          fmt::format("{} of a partial value is not the partial of {}: each rank holds only its "
                      "share of the sum",
                      what, what)));
    }
    if (partial) continue;
    if (auto differing = operands_differ(query, static_cast<int>(axis), what))
      placed.violations.push_back(std::move(*differing));
  }
  if (!placed.violations.empty()) return placed;
  for (std::size_t input = 1; input < query.inputs.size(); ++input) {
    if (query.inputs[input].owned != query.inputs[0].owned ||
        query.inputs[input].row_axes != query.inputs[0].row_axes) {
      placed.violations.push_back(
          {"ranges_differ", static_cast<int>(input), 0, query.inputs[0].placements[0],
           query.inputs[0], fmt::format("{} needs both operands cut in the same ranges", what), "", {}, 0});
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
    } else if (met.cuts_features()) {
      placed.violations.push_back(over_shard(query, static_cast<int>(axis)));
    }
    if (query.weight != nullptr && query.weight->on(static_cast<int>(axis)) != nullptr &&
        placed.violations.empty()) {
      placed.violations.push_back(
          {"statistic_over_shard", 0, static_cast<int>(axis), Placement::replicated(), query.inputs[0],
           "this norm's weight is cut, but its input is whole: don't cut the weight", "", {}, 0});
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
