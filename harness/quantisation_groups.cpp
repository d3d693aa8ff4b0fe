// SPDX-License-Identifier: Apache-2.0
#include "harness/quantisation_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sharded/partition_rules.hpp"

namespace shardcheck {
namespace {

struct Border {
  std::size_t rank = 0;
  std::int64_t column = 0;
};

/// Where a rank's range begins or ends inside a group.
std::optional<Border> border_inside(const std::vector<Ranges>& cols, std::int64_t group) {
  for (std::size_t rank = 0; rank < cols.size(); ++rank) {
    for (const Range& range : cols[rank]) {
      if (range.size() == 0) continue;
      if (range.begin % group != 0) return Border{rank, range.begin};
      if (range.end % group != 0) return Border{rank, range.end};
    }
  }
  return std::nullopt;
}

/// Sizes whose balanced cut of columns falls between groups.
std::vector<int> whole_sizes(std::int64_t columns, std::int64_t group) {
  std::vector<int> sizes;
  for (int size = 1; size <= 64 && group * size <= columns; ++size)
    if (columns % (group * size) == 0) sizes.push_back(size);
  return sizes;
}

}  // namespace

std::vector<Finding> quantisation_groups(const Model& model, const ResolvedPlan& plan,
                                         bool kept_quantised) {
  std::vector<Finding> findings;
  if (!model.has_weights()) return findings;
  for (const Module& module : model.modules()) {
    if (module.kind == ModuleKind::norm) continue;
    const ModulePlacement& placement = plan.placement(module.path);
    if (placement.cols.empty()) continue;
    const std::int64_t group = info(model.dtype(module.weight())).block_elements;
    const std::optional<Border> border = group > 1 ? border_inside(placement.cols, group)
                                                   : std::nullopt;
    if (!border) continue;
    std::string axis;
    bool by_group = false;
    for (const ModulePlacement::AxisCut& cut : placement.cuts) {
      if (cut.rows) continue;
      axis = plan.mesh.axes[static_cast<std::size_t>(cut.axis)].name;
      by_group = by_group || cut.unit == CutUnit::group;
    }
    const bool error = by_group || kept_quantised;
    const std::string sizes = fmt::format("sizes that keep groups whole: {}",
                                          fmt::join(whole_sizes(module.in, group), ", "));
    findings.push_back(
        {error ? "quantisation_group_cut" : "dequantised_group_cut", "weight", module.path, axis,
         fmt::format("columns {} on rank {}", to_string(placement.cols[border->rank]), border->rank),
         fmt::format("borders at multiples of {}", group),
         error ? fmt::format("in weights \"{}\": {{\"{}\": \"shard(in by group)\"}}", module.path, axis)
               : "",
         fmt::format("column {} lies inside a group of {} ({} columns in groups of {}, {}); {}{}",
                     border->column, group, module.in, group, name(model.dtype(module.weight())),
                     error ? "" : "weights are dequantised when loaded, so this is exact here; ",
                     sizes)});
  }
  return findings;
}

}  // namespace shardcheck
