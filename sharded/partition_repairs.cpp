// SPDX-License-Identifier: Apache-2.0
// What stands in for ranges that are no partition, and the plan's entry that would make them one.
#include <fmt/format.h>

#include <algorithm>

#include "sharded/partition_rules.hpp"

namespace shardcheck {
namespace {

void keep_within(std::vector<Ranges>& owned, std::int64_t extent, int ranks) {
  if (owned.empty()) return;
  owned.resize(static_cast<std::size_t>(ranks));
  for (Ranges& ranges : owned) {
    for (Range& range : ranges) {
      range.begin = std::clamp<std::int64_t>(range.begin, 0, extent);
      range.end = std::clamp<std::int64_t>(range.end, range.begin, extent);
    }
  }
}

}  // namespace

ResolvedPlan within_weights(ResolvedPlan plan, const std::vector<Module>& modules) {
  for (const Module& module : modules) {
    const auto found = plan.weights.find(module.path);
    if (found == plan.weights.end()) continue;
    keep_within(found->second.rows, module.out, plan.mesh.ranks());
    keep_within(found->second.cols, module.in, plan.mesh.ranks());
  }
  return plan;
}

Ranges kv_rows_for(const Config& config, const Ranges& q_rows) {
  const std::int64_t group = config.num_heads / config.num_kv_heads;
  Ranges rows;
  for (const Range& range : q_rows) {
    const std::int64_t begin = std::max<std::int64_t>(range.begin, 0);
    const std::int64_t end = std::min(range.end, config.q_size());
    if (begin >= end) continue;
    const std::int64_t first = begin / config.head_dim / group;
    const std::int64_t last = (end - 1) / config.head_dim / group;
    rows.push_back({first * config.head_dim, (last + 1) * config.head_dim});
  }
  return normalized(std::move(rows));
}

std::string cut_entry(const Module& module, bool rows, const std::string& axis) {
  const std::string_view cut = [&]() -> std::string_view {
    switch (module.role) {
      case ModuleRole::token_embedding:
      case ModuleRole::position_embedding:
        return rows ? "vocab" : "features";
      case ModuleRole::lm_head:
        return rows ? "vocab" : "in";
      case ModuleRole::q:
      case ModuleRole::qkv:
        return rows ? "out by head" : "in";
      case ModuleRole::k:
      case ModuleRole::v:
        return rows ? "out by kv_head" : "in";
      case ModuleRole::o:
        return rows ? "out" : "in by head";
      case ModuleRole::q_norm:
        return "features by head";
      case ModuleRole::k_norm:
        return "features by kv_head";
      default:
        return module.kind == ModuleKind::norm ? "features" : rows ? "out" : "in";
    }
  }();
  return fmt::format("\"{}\": {{\"{}\": \"shard({})\"}}", module.path, axis, cut);
}

}  // namespace shardcheck
