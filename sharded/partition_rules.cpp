// SPDX-License-Identifier: Apache-2.0
#include "sharded/partition_rules.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {
namespace {

std::string_view dimension(bool rows) { return rows ? "row" : "column"; }

std::string_view name(ModuleRole role) {
  switch (role) {
    case ModuleRole::q:
      return "q";
    case ModuleRole::k:
      return "k";
    case ModuleRole::v:
      return "v";
    case ModuleRole::gate:
      return "gate";
    case ModuleRole::up:
      return "up";
    default:
      return "section";
  }
}

std::string sections_text(const std::vector<Section>& sections) {
  std::vector<std::string> words;
  for (const Section& s : sections)
    words.push_back(fmt::format("{} [{},{})", name(s.role), s.begin, s.end));
  return words.empty() ? "one section" : fmt::format("{}", fmt::join(words, ", "));
}

bool same_sections(const std::vector<Section>& a, const std::vector<Section>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Section& x, const Section& y) {
    return x.role == y.role && x.begin == y.begin && x.end == y.end;
  });
}

/// What a rank has of a section, counted from the section's first row.
Ranges part_of(const Ranges& rows, const Section& section) {
  Ranges part;
  for (const Range& range : rows) {
    const std::int64_t begin = std::max(range.begin, section.begin);
    const std::int64_t end = std::min(range.end, section.end);
    if (begin < end) part.push_back({begin - section.begin, end - section.begin});
  }
  return normalized(std::move(part));
}

/// The first index that one of the two has and the other lacks; both normalized and different.
std::int64_t first_difference(const Ranges& a, const Ranges& b) {
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  if (i == a.size()) return b[i].begin;
  if (i == b.size()) return a[i].begin;
  return a[i].begin != b[i].begin ? std::min(a[i].begin, b[i].begin) : std::min(a[i].end, b[i].end);
}

bool holds_index(const Ranges& ranges, std::int64_t index) {
  return std::any_of(ranges.begin(), ranges.end(),
                     [index](const Range& r) { return r.begin <= index && index < r.end; });
}

class Checker {
 public:
  Checker(const Config& config, const std::vector<Module>& modules, const ResolvedPlan& plan)
      : config_(config), modules_(modules), plan_(plan), mesh_(plan.mesh) {
    for (int rank = 0; rank < mesh_.ranks(); ++rank)
      coordinates_.push_back(mesh_.coordinates(rank));
  }

  PartitionCheck check() {
    if (mesh_.ranks() == 1) return {};
    check_declared_sections();
    const Module* q = nullptr;
    const Module* k = nullptr;
    for (const Module& module : modules_) {
      if (module.role == ModuleRole::q) q = &module;
      if (module.role == ModuleRole::k) k = &module;
      const ModulePlacement& placement = plan_.placement(module.path);
      const Module* heads = module.role == ModuleRole::q_norm   ? q
                            : module.role == ModuleRole::k_norm ? k
                                                                : nullptr;
      if (heads != nullptr && check_head_parameter(module, placement, *heads)) continue;
      if (placement.cuts.empty() && placement.rows.empty() && placement.cols.empty()) continue;
      check_dimension(module, placement, true);
      check_dimension(module, placement, false);
      check_sections(module, placement);
    }
    return std::move(result_);
  }

 private:
  void add(const Module& module, std::string rule, const std::string& axis, std::string met,
           std::string required, std::string fix, std::string sentence) {
    result_.findings.push_back(
        {std::move(rule), "weight", module.path, axis, std::move(met), std::move(required),
         fix.empty() || fix[0] != '"' ? std::move(fix) : "in weights " + fix, std::move(sentence)});
  }

  /// The innermost axis that cuts this dimension; where none does, the first that has ranks at all.
  std::string axis_of(const ModulePlacement& placement, bool rows) const {
    for (auto cut = placement.cuts.rbegin(); cut != placement.cuts.rend(); ++cut)
      if (cut->rows == rows) return mesh_.axes[static_cast<std::size_t>(cut->axis)].name;
    for (const Mesh::Axis& axis : mesh_.axes)
      if (axis.size > 1) return axis.name;
    return mesh_.axes[0].name;
  }

  void check_dimension(const Module& module, const ModulePlacement& placement, bool rows) {
    const std::vector<Ranges>& owned = rows ? placement.rows : placement.cols;
    std::vector<int> axes;
    for (const ModulePlacement::AxisCut& cut : placement.cuts)
      if (cut.rows == rows && mesh_.axes[static_cast<std::size_t>(cut.axis)].size > 1)
        axes.push_back(cut.axis);
    if (owned.empty() && axes.empty()) return;
    const std::int64_t extent = rows ? module.out : module.in;
    const std::string axis = axis_of(placement, rows);
    const std::string each = fmt::format("each of its {} {}s on one rank", extent, dimension(rows));
    const std::string fix = axes.empty() ? "" : cut_entry(module, rows, axis);
    const auto broken = [&](std::string rule, std::string met, std::string required,
                            std::string sentence) {
      result_.broken.insert(module.path);
      add(module, std::move(rule), axis, std::move(met), std::move(required), fix, std::move(sentence));
    };
    if (!owned.empty() && owned.size() != coordinates_.size()) {
      broken("ranges_missing", fmt::format("ranges for {} ranks", owned.size()),
             fmt::format("ranges for {}", coordinates_.size()),
             "every rank of the mesh needs its ranges");
      return;
    }
    // Ranks that differ only along other axes hold the same part: the first of them stands for all.
    std::map<std::vector<int>, int> first;
    std::vector<Piece> pieces;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const Ranges mine = owned.empty() ? Ranges{{0, extent}} : owned[at];
      std::vector<int> key;
      for (const int cut : axes) key.push_back(coordinates_[at][static_cast<std::size_t>(cut)]);
      const auto [home, fresh] = first.emplace(std::move(key), rank);
      if (!fresh) {
        const auto other = static_cast<std::size_t>(home->second);
        if (owned.empty() || owned[other] == mine) continue;
        broken("ranges_differ",
               fmt::format("{}s {} on rank {} and {} on rank {}", dimension(rows),
                           to_string(owned[other]), other, to_string(mine), rank),
               "the same on both", "ranks that no axis of this cut tells apart hold the same part");
        return;
      }
      for (const Range& range : mine) {
        if (range.begin < 0 || range.end > extent || range.begin > range.end) {
          broken("ranges_outside",
                 fmt::format("{}s from {} on rank {}", dimension(rows),
                             range.begin < 0 ? range.begin : std::max(range.begin, extent), rank),
                 fmt::format("ranges within [0,{})", extent),
                 fmt::format("the weight has {} {}s: a range may not reach beyond them", extent,
                             dimension(rows)));
          return;
        }
        if (range.size() > 0) pieces.push_back({range, rank});
      }
    }
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.range.begin != b.range.begin ? a.range.begin < b.range.begin : a.rank < b.rank;
    });
    std::int64_t covered = 0;
    const Piece* last = nullptr;
    for (const Piece& piece : pieces) {
      if (piece.range.begin > covered) break;
      const Range both{piece.range.begin, std::min(covered, piece.range.end)};
      if (both.size() > 0 && (last->rank == piece.rank || !may_share(module, rows, both))) {
        const std::string where = last->rank == piece.rank
                                      ? fmt::format("twice on rank {}", piece.rank)
                                      : fmt::format("on ranks {} and {}",
                                                    std::min(last->rank, piece.rank),
                                                    std::max(last->rank, piece.rank));
        broken(
            "ranges_overlap",
            fmt::format("{}s [{},{}) {}", dimension(rows), both.begin, both.end, where), each,
            rows
                ? "what two ranks hold is computed twice, and counts twice where results are joined"
                : "what two ranks hold stands twice in the sum over ranks");
        return;
      }
      if (piece.range.end > covered || last == nullptr) last = &piece;
      covered = std::max(covered, piece.range.end);
    }
    if (covered == extent) return;
    const auto next = std::find_if(pieces.begin(), pieces.end(), [covered](const Piece& piece) {
      return piece.range.begin > covered;
    });
    broken("ranges_missing",
           fmt::format("{}s [{},{}) on no rank", dimension(rows), covered,
                       next == pieces.end() ? extent : next->range.begin),
           each, "what no rank holds is missing from the result");
  }

  /// Several ranks may need one kv head: rows of k, v, or of those sections of a fused tensor.
  static bool may_share(const Module& module, bool rows, const Range& range) {
    if (!rows) return false;
    if (module.role == ModuleRole::k || module.role == ModuleRole::v || module.role == ModuleRole::k_norm)
      return true;
    return std::any_of(module.sections.begin(), module.sections.end(), [&](const Section& section) {
      return (section.role == ModuleRole::k || section.role == ModuleRole::v) &&
             section.begin <= range.begin && range.end <= section.end;
    });
  }

  /// A program's modules against what the model says: who declares other borders cuts across the true ones.
  void check_declared_sections() {
    const auto fused = [](const Module& module) {
      return !module.sections.empty() || module.role == ModuleRole::qkv ||
             module.role == ModuleRole::gate_up;
    };
    if (std::none_of(modules_.begin(), modules_.end(), fused)) return;
    std::map<std::string, Module> known;
    for (Module& module : shardcheck::modules(config_))
      if (fused(module)) known.emplace(module.path, std::move(module));
    for (const Module& module : modules_) {
      const auto found = known.find(module.path);
      if (found == known.end() || same_sections(found->second.sections, module.sections)) continue;
      const ModulePlacement& placement = plan_.placement(module.path);
      result_.broken.insert(module.path);
      add(module, "sections_misdeclared", axis_of(placement, true), sections_text(module.sections),
          sections_text(found->second.sections), "",
          fmt::format("the {} rows of this fused tensor have other borders", found->second.out));
    }
  }

  void check_sections(const Module& module, const ModulePlacement& placement) {
    if (module.sections.size() < 2 || placement.rows.empty() ||
        result_.broken.contains(module.path) || gathered_at_once(module, placement)) {
      return;
    }
    const Section& lead = module.sections.front();
    for (std::size_t rank = 0; rank < placement.rows.size(); ++rank) {
      const Ranges first = part_of(placement.rows[rank], lead);
      const Section* before = nullptr;  // another section of the same extent as the one at hand
      for (std::size_t i = 1; i < module.sections.size(); ++i) {
        const Section& section = module.sections[i];
        const Ranges part = part_of(placement.rows[rank], section);
        if (part.empty() != first.empty()) {
          cut_across(module, placement, rank, lead, first, section, part);
          return;
        }
        const bool like_lead = section.end - section.begin == lead.end - lead.begin &&
                               (lead.role != ModuleRole::q || !on_heads(first) || !on_heads(part));
        if (like_lead && part != first) {
          cut_across(module, placement, rank, lead, first, section, part);
          return;
        }
        if (before != nullptr && part_of(placement.rows[rank], *before) != part) {
          cut_across(module, placement, rank, *before, part_of(placement.rows[rank], *before),
                     section, part);
          return;
        }
        before = &section;
      }
    }
  }

  /// Whether nothing is computed from the parts of the output: in every phase it is put together first.
  bool gathered_at_once(const Module& module, const ModulePlacement& placement) const {
    for (const auto& [phase, points] : plan_.points) {
      const std::vector<CollectiveStep>& steps = plan_.steps(phase, module.path + ".out");
      if (steps.empty() || steps[0].kind != CollectiveStep::Kind::all_gather ||
          activation_dim(steps[0].dim) != Dim::features) {
        return false;
      }
      for (const ModulePlacement::AxisCut& cut : placement.cuts) {
        const std::string& axis = mesh_.axes[static_cast<std::size_t>(cut.axis)].name;
        if (cut.rows && std::count(steps[0].axes.begin(), steps[0].axes.end(), axis) == 0)
          return false;
      }
    }
    return true;
  }

  bool on_heads(const Ranges& part) const {
    return std::all_of(part.begin(), part.end(), [this](const Range& range) {
      return range.begin % config_.head_dim == 0 && range.end % config_.head_dim == 0;
    });
  }

  void cut_across(const Module& module, const ModulePlacement& placement, std::size_t rank,
                  const Section& a, const Ranges& of_a, const Section& b, const Ranges& of_b) {
    const std::int64_t at = first_difference(of_a, of_b);
    const bool a_has = holds_index(of_a, at);
    const Section& has = a_has ? a : b;
    const Section& lacks = a_has ? b : a;
    const std::string axis = axis_of(placement, true);
    add(module, "section_is_cut", axis,
        fmt::format("rows {} on rank {}", to_string(placement.rows[rank]), rank),
        fmt::format("sections {} cut each on its own", sections_text(module.sections)),
        cut_entry(module, true, axis),
        fmt::format("rank {} has row {} of {} without its counterpart in {}: a cut of the whole "
                    "tensor goes "
                    "across the section {} (rows {} to {})",
                    rank, has.begin + at, name(has.role), name(lacks.role), name(lacks.role),
                    lacks.begin, lacks.end - 1));
    result_.broken.insert(module.path);
    result_.assumed[module.path] = cut_by_sections(module, placement);
  }

  /// What `shard(out by head)`, or `shard(out)` where there are no heads, gives on the axes of this cut.
  ModulePlacement cut_by_sections(const Module& module, const ModulePlacement& placement) const {
    ModulePlacement assumed = placement;
    std::vector<int> axes;
    for (const ModulePlacement::AxisCut& cut : placement.cuts)
      if (cut.rows) axes.push_back(cut.axis);
    const bool heads = module.role == ModuleRole::qkv;
    const int size = mesh_.group_size(axes);
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      int at = 0;
      for (const int axis : axes) {
        const auto i = static_cast<std::size_t>(axis);
        at = at * mesh_.axes[i].size + coordinates_[static_cast<std::size_t>(rank)][i];
      }
      Ranges rows, q;
      for (const Section& section : module.sections) {
        const bool kv = heads && section.role != ModuleRole::q;
        const Ranges part = kv ? kv_rows_for(config_, q)
                               : Partition::balanced(section.end - section.begin, size,
                                                     heads ? config_.head_dim : 1)
                                     .of(at);
        if (section.role == ModuleRole::q) q = part;
        for (const Range& range : part)
          rows.push_back({range.begin + section.begin, range.end + section.begin});
      }
      assumed.rows[static_cast<std::size_t>(rank)] = rows;
    }
    assumed.may_overlap = heads;
    return assumed;
  }

  /// A norm of q or k: one vector of head_dim for every head, or an entry for every feature of all heads. True if all is
  /// said about it.
  bool check_head_parameter(const Module& module, const ModulePlacement& placement,
                            const Module& heads) {
    const std::string axis = axis_of(placement, true);
    if (module.out == config_.head_dim && heads.out != module.out) {
      if (placement.rows.empty()) return false;
      add(module, "head_parameter_is_cut", axis,
          fmt::format("rows {} on rank 0", to_string(placement.rows[0])),
          fmt::format("all {} on every rank", module.out),
          fmt::format("\"{}\": {{\"{}\": \"replicate\"}}", module.path, axis),
          "one vector serves every head: each rank's heads need all of it");
      result_.assumed[module.path] = {};
      return true;
    }
    if (module.out != heads.out) return false;
    const ModulePlacement& source = plan_.placement(heads.path);
    if (source.rows.empty() || result_.broken.contains(heads.path) || !has_statistic(module))
      return false;
    if (placement.rows == source.rows ||
        (!placement.rows.empty() && placement.rows.size() != source.rows.size()))
      return false;
    const bool between_heads = std::all_of(source.rows.begin(), source.rows.end(),
                                           [this](const Ranges& rows) { return on_heads(rows); });
    if (!between_heads) {  // the mistake is in the cut of the heads themselves
      result_.assumed[module.path] = like(placement, source);
      return true;
    }
    const std::string along = axis_of(source, true);
    const bool whole = placement.rows.empty();
    std::size_t rank = 0;
    while (!whole && rank + 1 < source.rows.size() && placement.rows[rank] == source.rows[rank])
      ++rank;
    add(module, "head_parameter_not_cut", along,
        whole ? fmt::format("all {} rows on every rank", module.out)
              : fmt::format("rows {} on rank {}", to_string(placement.rows[rank]), rank),
        fmt::format("rows {} on rank {}", to_string(source.rows[rank]), rank),
        cut_entry(module, true, along),
        fmt::format("it has an entry for every feature of all heads, and {} cuts the heads",
                    heads.path));
    result_.assumed[module.path] = like(placement, source);
    return true;
  }

  /// A vector cut as the rows of another weight are.
  static ModulePlacement like(const ModulePlacement& placement, const ModulePlacement& source) {
    ModulePlacement assumed = placement;
    assumed.rows = source.rows;
    assumed.cuts = source.cuts;
    assumed.may_overlap = source.may_overlap;
    std::erase_if(assumed.cuts, [](const ModulePlacement::AxisCut& cut) { return !cut.rows; });
    return assumed;
  }

  bool has_statistic(const Module& module) const {
    for (const auto& [phase, points] : plan_.points)
      if (!plan_.steps(phase, module.path + ".stat").empty()) return true;
    return false;
  }

  struct Piece {
    Range range;
    int rank;
  };

  const Config& config_;
  const std::vector<Module>& modules_;
  const ResolvedPlan& plan_;
  const Mesh& mesh_;
  std::vector<std::vector<int>> coordinates_;  // by rank
  PartitionCheck result_;
};

}  // namespace

PartitionCheck check_partitions(const Config& config, const std::vector<Module>& modules,
                                const ResolvedPlan& plan) {
  return Checker(config, modules, plan).check();
}

}  // namespace shardcheck
