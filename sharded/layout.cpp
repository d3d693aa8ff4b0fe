// SPDX-License-Identifier: Apache-2.0
#include "sharded/layout.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::R:
      return "R";
    case Placement::Kind::S:
      return placement.dim == Dim::tokens ? "S(tokens)" : "S(features)";
    case Placement::Kind::P_sum:
      return "P(sum)";
    case Placement::Kind::P_max:
      return "P(max)";
  }
  return "?";
}

Layout Layout::replicated(std::int64_t features, const Mesh& mesh) {
  Layout layout;
  layout.features = features;
  layout.placements.resize(mesh.axes.size());
  return layout;
}

Layout Layout::sharded(const Mesh& mesh, int axis, const Partition& partition, bool may_overlap) {
  Layout layout = replicated(partition.extent(), mesh);
  layout.placements[static_cast<std::size_t>(axis)] = Placement::sharded(Dim::features);
  layout.may_overlap = may_overlap;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    layout.owned.push_back(partition.of(mesh.coordinates(rank)[static_cast<std::size_t>(axis)]));
  }
  return layout;
}

Layout Layout::partial(std::int64_t features, const Mesh& mesh, int axis) {
  Layout layout = replicated(features, mesh);
  layout.placements[static_cast<std::size_t>(axis)] = Placement::partial();
  return layout;
}

Ranges Layout::feature_ranges(int rank) const {
  if (owned.empty()) return {{0, features}};
  return owned[static_cast<std::size_t>(rank)];
}

Ranges Layout::token_ranges(const Mesh& mesh, int rank, std::int64_t tokens) const {
  Ranges mine{{0, tokens}};
  const std::vector<int> at = mesh.coordinates(rank);
  for (const int axis : token_axes) {
    const auto i = static_cast<std::size_t>(axis);
    mine = compose(mine, Partition::balanced(total(mine), mesh.axes[i].size).of(at[i]));
  }
  return mine;
}

bool Layout::any_partial() const {
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& placement) { return placement.is_partial(); });
}

std::string to_string(const Layout& layout, const Mesh& mesh) {
  if (mesh.axes.size() == 1) return to_string(layout.placements[0]);
  std::string text;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", mesh.axes[i].name,
                        to_string(layout.placements[i]));
  }
  return text;
}

}  // namespace shardcheck
