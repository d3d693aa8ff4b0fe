// SPDX-License-Identifier: Apache-2.0
// The cut that an imported rule means for one module: in the plan's words where they say the same, else in ranges.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "harness/import/assemble.hpp"

namespace shardcheck {
namespace {

bool in_attention(ModuleRole role) {
  return role == ModuleRole::q || role == ModuleRole::k || role == ModuleRole::v ||
         role == ModuleRole::qkv || role == ModuleRole::o;
}

/// Rows of q, k and v and columns of o have heads; their other dimension has none.
bool has_heads(const ImportedRule& rule, const Module& module) {
  const ImportedCut along = module.role == ModuleRole::o ? ImportedCut::rowwise
                                                         : ImportedCut::colwise;
  return in_attention(module.role) && rule.cut == along;
}

/// The plan's dimension that a rule cuts; refuses kinds of modules that have none.
PlanDim dim_of(const ImportedRule& rule, const Module& module, const JsonPlaces& places) {
  const bool colwise = rule.cut == ImportedCut::colwise;
  switch (module.kind) {
    case ModuleKind::linear:
      if (!colwise) return PlanDim::in;
      return module.role == ModuleRole::lm_head ? PlanDim::vocab : PlanDim::out;
    case ModuleKind::embedding:
      return colwise ? PlanDim::features : PlanDim::vocab;
    case ModuleKind::norm:
      break;
  }
  places.fail_at(
      rule.style_place,
      fmt::format("\"{}\": \"{}\" cuts a linear or an embedding, and this is a norm: each "
                  "rank would take its statistic over a part of the row; leave it whole",
                  rule.pattern, rule.style));
}

CutUnit unit_of(const ImportedRule& rule, const Module& module, const JsonPlaces& places) {
  const bool kv = module.role == ModuleRole::k || module.role == ModuleRole::v;
  switch (rule.grain) {
    case ImportedGrain::chunk:
      return CutUnit::chunk;
    case ImportedGrain::row:
      return CutUnit::row;
    case ImportedGrain::head:
      if (!has_heads(rule, module)) {
        places.fail_at(rule.style_place,
                       fmt::format("\"{}\": \"{}\" cuts the rows of q, k and v by heads, and those of {} are none",
                                   rule.pattern, rule.style, module.path));
      }
      return kv ? CutUnit::kv_head : CutUnit::head;
    case ImportedGrain::kv_group:
      return has_heads(rule, module) ? CutUnit::kv_head : CutUnit::row;
  }
  return CutUnit::row;
}

/// Ranges in rows for each group size.
WeightCut in_ranges(PlanDim dim, const std::vector<int>& sizes,
                    const std::function<std::vector<Ranges>(int)>& ranges) {
  WeightCut cut{true, dim, CutUnit::row, {}};
  for (const int size : sizes) {
    std::vector<Ranges> per_rank = ranges(size);
    if (!per_rank.empty()) cut.ranges[size] = std::move(per_rank);
  }
  return cut;
}

/// Each run of rows on its own: rank r gets its part of every one. `units`: each run has so many equal units that are
/// not split, if it divides into them.
std::vector<Ranges> cut_blocks(const std::vector<std::int64_t>& blocks, int size, bool chunks,
                               std::int64_t units = 0) {
  std::vector<Ranges> per_rank(static_cast<std::size_t>(size));
  std::int64_t start = 0;
  for (const std::int64_t block : blocks) {
    const std::int64_t unit = units > 0 && block % units == 0 ? block / units : 1;
    const Partition part = chunks ? Partition::chunked(block, size)
                                  : Partition::balanced(block, size, unit);
    for (int rank = 0; rank < size; ++rank) {
      for (const Range& range : part.of(rank)) {
        if (range.size() > 0)
          per_rank[static_cast<std::size_t>(rank)].push_back({range.begin + start, range.end + start});
      }
    }
    start += block;
  }
  return per_rank;
}

std::vector<std::int64_t> blocks_of(const ImportedRule& rule, const Module& module,
                                    const JsonPlaces& places) {
  std::vector<std::int64_t> blocks = rule.blocks;
  if (rule.equal_blocks > 0) {
    if (module.out % rule.equal_blocks != 0) {
      places.fail_at(rule.style_place,
                     fmt::format("\"{}\": the {} rows of {} are no {} equal blocks", rule.pattern,
                                 module.out, module.path, rule.equal_blocks));
    }
    blocks.assign(static_cast<std::size_t>(rule.equal_blocks), module.out / rule.equal_blocks);
  }
  const std::int64_t sum = std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
  if (!blocks.empty() && sum != module.out) {
    places.fail_at(rule.style_place,
                   fmt::format("\"{}\": the blocks {} make {} rows, and {} has {}", rule.pattern,
                               fmt::join(blocks, " + "), sum, module.path, module.out));
  }
  return blocks;
}

bool are_sections(const std::vector<std::int64_t>& blocks, const Module& module) {
  return std::equal(
      blocks.begin(), blocks.end(), module.sections.begin(), module.sections.end(),
      [](std::int64_t rows, const Section& section) { return rows == section.end - section.begin; });
}

/// Rows as if the vocabulary were filled up to a multiple of `padding`; group sizes that don't divide it are left out.
std::vector<Ranges> padded(std::int64_t rows, std::int64_t padding, int size) {
  const std::int64_t full = (rows + padding - 1) / padding * padding;
  if (full % size != 0) return {};
  std::vector<Ranges> per_rank;
  for (std::int64_t begin = 0; begin < full; begin += full / size)
    per_rank.push_back({{std::min(begin, rows), std::min(begin + full / size, rows)}});
  return per_rank;
}

}  // namespace

WeightCut cut_of(const ImportedRule& rule, const Module& module, const JsonPlaces& places,
                 const ImportOptions& options) {
  if (rule.cut == ImportedCut::none) return {};
  const PlanDim dim = dim_of(rule, module, places);
  const CutUnit unit = unit_of(rule, module, places);
  const WeightCut plain{true, dim, unit, {}};
  // Without a model only the words can be carried over.
  if (options.model == nullptr) {
    const bool halves = rule.equal_blocks == 2 && module.role == ModuleRole::gate_up;
    return halves ? WeightCut{true, dim, CutUnit::row, {}} : plain;
  }
  if (rule.padded_to > 0 && module.out % rule.padded_to != 0)
    return in_ranges(dim, options.sizes,
                     [&](int size) { return padded(module.out, rule.padded_to, size); });
  const std::int64_t kv_heads = options.model->config().num_kv_heads;
  if (rule.grain == ImportedGrain::kv_group && in_attention(module.role) && !has_heads(rule, module)) {
    // Its source cuts every dimension in attention in as many units as there are kv heads, where it divides into them.
    const std::vector<std::int64_t> all{rule.cut == ImportedCut::colwise ? module.out : module.in};
    const bool alike = std::all_of(options.sizes.begin(), options.sizes.end(), [&](int size) {
      return cut_blocks(all, size, false, kv_heads) == cut_blocks(all, size, false);
    });
    if (alike) return plain;
    return in_ranges(dim, options.sizes, [&](int size) { return cut_blocks(all, size, false, kv_heads); });
  }
  if (rule.cut == ImportedCut::rowwise || module.kind != ModuleKind::linear) return plain;

  const bool chunks = unit == CutUnit::chunk;
  std::vector<std::int64_t> blocks = blocks_of(rule, module, places);
  const bool sections = !module.sections.empty() &&
                        (are_sections(blocks, module) || rule.own_sections);
  if (module.role == ModuleRole::qkv && rule.grain == ImportedGrain::kv_group) {
    // Section by section, and every rank as many kv heads as q heads need: the plan's `by head`.
    const bool even = std::all_of(options.sizes.begin(), options.sizes.end(),
                                  [kv_heads](int size) { return kv_heads % size == 0; });
    if (sections && even) return {true, dim, CutUnit::head, {}};
    if (blocks.empty()) blocks = {module.out};
    return in_ranges(dim, options.sizes,
                     [&](int size) { return cut_blocks(blocks, size, false, kv_heads); });
  }
  if (sections && !chunks) return plain;  // the plan cuts section by section too
  if (blocks.empty() && (module.sections.empty() || chunks)) return plain;
  if (blocks.empty()) blocks = {module.out};  // a fused weight cut as one
  if (sections) {
    const bool alike = std::all_of(options.sizes.begin(), options.sizes.end(), [&](int size) {
      return cut_blocks(blocks, size, true) == cut_blocks(blocks, size, false);
    });
    if (alike) return {true, dim, CutUnit::row, {}};
  }
  return in_ranges(dim, options.sizes, [&](int size) { return cut_blocks(blocks, size, chunks); });
}

}  // namespace shardcheck
