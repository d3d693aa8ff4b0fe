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
      return placement.dim == Dim::features ? "S(features)"
             : placement.dim == Dim::tokens ? "S(tokens)"
                                            : "S(sequence)";
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

Ranges Layout::row_ranges(const Mesh& mesh, int rank, const Step& step) const {
  Ranges mine{{0, step.tokens()}};
  const std::vector<int> at = mesh.coordinates(rank);
  std::int64_t stride = 1;  // ranks of the sequence axes so far
  for (const int axis : row_axes) {
    const auto i = static_cast<std::size_t>(axis);
    const int size = mesh.axes[i].size;
    if (placements[i].dim == Dim::tokens) {
      mine = compose(mine, Partition::balanced(total(mine), size).of(at[i]));
      continue;
    }
    Ranges own;
    std::int64_t row = 0;
    for (const StepSequence& part : step.sequences) {
      if (part.sequence / stride % size == at[i]) own.push_back({row, row + part.count});
      row += part.count;
    }
    mine = intersection(mine, normalized(std::move(own)));
    stride *= size;
  }
  return mine;
}

bool Layout::holds_sequence(const Mesh& mesh, int rank, std::int64_t sequence) const {
  const std::vector<int> at = mesh.coordinates(rank);
  for (const int axis : row_axes) {
    const auto i = static_cast<std::size_t>(axis);
    if (placements[i].dim != Dim::sequences) continue;
    if (sequence % mesh.axes[i].size != at[i]) return false;
    sequence /= mesh.axes[i].size;
  }
  return true;
}

Ranges Layout::kept_positions(const Mesh& mesh, int rank, std::span<const Step* const> steps,
                              std::int64_t sequence) const {
  const bool by_tokens = std::any_of(row_axes.begin(), row_axes.end(), [this](int axis) {
    return placements[static_cast<std::size_t>(axis)].dim == Dim::tokens;
  });
  if (!by_tokens) {
    std::int64_t end = 0;
    for (const Step* step : steps) {
      for (const StepSequence& part : step->sequences) {
        if (part.sequence == sequence) end = std::max(end, part.first + part.count);
      }
    }
    return holds_sequence(mesh, rank, sequence) && end > 0 ? Ranges{{0, end}} : Ranges{};
  }
  Ranges kept;
  for (const Step* step : steps) {
    const Ranges mine = row_ranges(mesh, rank, *step);
    std::int64_t row = 0;
    for (const StepSequence& part : step->sequences) {
      if (part.sequence == sequence) {
        kept = without(kept, {part.first, part.first + part.count});
        for (const Range& held : intersection(mine, {{row, row + part.count}}))
          kept.push_back({held.begin - row + part.first, held.end - row + part.first});
        kept = normalized(std::move(kept));
      }
      row += part.count;
    }
  }
  return kept;
}

Ranges Layout::cache_ranges(const Mesh& mesh, int rank, std::span<const Step* const> steps,
                            std::int64_t window) const {
  Ranges mine;
  std::int64_t row = 0;
  for (const StepSequence& part : steps.back()->sequences) {
    const Range seen = visible_keys(part, window);
    const Ranges kept = kept_positions(mesh, rank, steps, part.sequence);
    for (const Range& range : intersection(kept, {seen}))
      mine.push_back({range.begin - seen.begin + row, range.end - seen.begin + row});
    row += seen.size();
  }
  return normalized(std::move(mine));
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
