// SPDX-License-Identifier: Apache-2.0
// A plan applied to a model on a mesh: patterns to modules, cuts to index ranges.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "model/error.hpp"
#include "sharded/graph.hpp"
#include "sharded/partition_rules.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

const PlanSection& section_for(const Plan& plan, const std::string& model_type) {
  const auto flat = plan.families.find("");
  if (flat != plan.families.end()) return flat->second;
  const auto exact = plan.families.find(model_type);
  if (exact != plan.families.end()) return exact->second;
  static constexpr std::string_view kLlamaLike[] = {"mistral", "qwen2", "qwen3"};
  const auto llama = plan.families.find("llama");
  if (llama != plan.families.end() &&
      std::find(std::begin(kLlamaLike), std::end(kLlamaLike), model_type) != std::end(kLlamaLike)) {
    return llama->second;
  }
  std::vector<std::string> names;
  for (const auto& [name, section] : plan.families) names.push_back(name);
  throw InputError(fmt::format("{}: no section for model_type {}; the plan has {}", plan.origin,
                               model_type, fmt::join(names, ", ")));
}

namespace {

class Resolver {
 public:
  Resolver(const Plan& plan, const Model& model, const Mesh& mesh)
      : plan_(plan), model_(model), config_(model.config()), mesh_(mesh) {}

  ResolvedPlan resolve() {
    check_mesh();
    const PlanSection& section = section_for(plan_, config_.model_type);
    match_weights(section);
    ResolvedPlan resolved;
    resolved.mesh = mesh_;
    for (const Module& module : model_.modules()) resolved.weights[module.path] = {};
    // q before k and v, whose cut may follow it: modules come in forward order.
    for (const Module& module : model_.modules()) place(module, resolved);
    resolved.points[Phase::prefill] = match_points(section, Phase::prefill);
    resolved.points[Phase::decode] = match_points(section, Phase::decode);
    resolved.ops = match_ops(section);
    if (mesh_.ranks() == 1) resolved.ops.clear();
    return resolved;
  }

 private:
  [[noreturn]] void fail(const TextPlace& place, const std::string& message) const {
    throw InputError(place.line == 0 ? fmt::format("{}: {}", plan_.origin, message)
                                     : fmt::format("{}:{}:{}: {}", plan_.origin, place.line, place.column,
                                                   message));
  }
  TextPlace place_of(const Module& module) const {
    const auto rule = rules_.find(module.path);
    return rule == rules_.end() ? TextPlace{} : rule->second->place;
  }

  void check_mesh() {
    std::vector<std::string> names;
    for (const Mesh::Axis& axis : mesh_.axes) names.push_back(axis.name);
    if (names != plan_.mesh) {
      throw InputError(fmt::format(
          "{}: the plan's mesh is [{}], but the run's is {}; pass --mesh {}=N", plan_.origin,
          fmt::join(plan_.mesh, ", "), to_string(mesh_), fmt::join(plan_.mesh, "=N,")));
    }
  }

  void match_weights(const PlanSection& section) {
    std::vector<std::string> paths;
    for (const Module& module : model_.modules()) paths.push_back(module.path);
    for (const WeightRule& rule : section.weights) {
      bool any = false;
      for (const std::string& path : paths) {
        if (!matches(rule.pattern, path)) continue;
        any = true;
        const auto [entry, fresh] = rules_.emplace(path, &rule);
        if (!fresh) {
          fail(rule.place, fmt::format("{} is matched twice, by \"{}\" and \"{}\"; keep one", path,
                                       entry->second->pattern, rule.pattern));
        }
      }
      if (!any) {
        fail(rule.place, fmt::format("\"{}\" matches no module of {}; did you mean \"{}\"?", rule.pattern,
                                     config_.name, nearest_name(rule.pattern, paths)));
      }
    }
  }

  std::map<std::string, std::vector<CollectiveStep>, std::less<>> match_points(const PlanSection& section,
                                                                               Phase phase) {
    std::vector<std::string> valid;
    for (const Module& module : model_.modules()) {
      valid.push_back(module.path + ".out");
      // Token ids are whole on every rank, and nothing is sent of them.
      if (module.kind != ModuleKind::embedding) valid.push_back(module.path + ".in");
      if (module.kind == ModuleKind::norm) valid.push_back(module.path + ".stat");
    }
    std::map<std::string, std::vector<CollectiveStep>, std::less<>> points;
    const auto apply = [&](const std::vector<CollectiveRule>& rules, bool overriding) {
      std::map<std::string, std::string> owner;
      for (const CollectiveRule& rule : rules) {
        bool any = false;
        for (const std::string& point : valid) {
          if (!matches(rule.pattern, point)) continue;
          any = true;
          const auto [entry, fresh] = owner.emplace(point, rule.pattern);
          if (!fresh) {
            fail(rule.place, fmt::format("the point {} is matched twice, by \"{}\" and \"{}\"; keep one",
                                         point, entry->second, rule.pattern));
          }
          points[point] = rule.steps;
          for (const CollectiveStep& step : rule.steps) {
            check_root(point, step, rule.place);
            check_heads_of(point, step, rule.place);
          }
        }
        if (!any) {
          fail(rule.place, fmt::format("\"{}\"{} matches no point of {}; did you mean \"{}\"?", rule.pattern,
                                       overriding ? " (in phase)" : "", config_.name,
                                       nearest_name(rule.pattern, valid)));
        }
      }
    };
    apply(section.collectives, false);
    const auto overrides = section.phase.find(phase);
    if (overrides != section.phase.end()) apply(overrides->second, true);
    return points;
  }

  /// Checked on one rank too: whether a plan is well formed must not depend on the TP size.
  std::map<std::string, std::string, std::less<>> match_ops(const PlanSection& section) {
    std::map<std::string, std::string, std::less<>> ops;
    if (section.ops.empty()) return ops;
    std::vector<std::string> values;
    for (const Node& node : build_graph(config_).nodes) values.push_back(node.outputs[0]);
    for (const OpRule& rule : section.ops) {
      bool any = false;
      for (const std::string& value : values) {
        if (!matches(rule.pattern, value)) continue;
        any = true;
        const auto [entry, fresh] = ops.emplace(value, rule.op);
        if (!fresh) {
          fail(rule.place, fmt::format("two of \"ops\" match {}, {} and {}; keep one", value, entry->second, rule.op));
        }
      }
      if (!any) {
        fail(rule.place, fmt::format("\"{}\" in \"ops\" matches no value of {}; did you mean \"{}\"?", rule.pattern,
                                     config_.name, nearest_name(rule.pattern, values)));
      }
    }
    return ops;
  }

  /// Heads are units of what attention reads and makes. Elsewhere a width is a multiple of them by chance only.
  void check_heads_of(const std::string& point, const CollectiveStep& step, const TextPlace& place) const {
    const auto by_heads = [](PlanDim dim) { return dim == PlanDim::head || dim == PlanDim::kv_head; };
    const bool cuts = step.kind == CollectiveStep::Kind::slice || step.kind == CollectiveStep::Kind::reduce_scatter ||
                      step.kind == CollectiveStep::Kind::all_to_all;
    if (!cuts || !by_heads(step.dim)) return;
    const bool in = point.ends_with(".in");
    for (const Module& module : model_.modules()) {
      if (!point.starts_with(module.path + ".")) continue;
      const ModuleRole role = module.role;
      if (role == ModuleRole::q_norm || role == ModuleRole::k_norm || (in && role == ModuleRole::o)) return;
      if (!in && (role == ModuleRole::q || role == ModuleRole::k || role == ModuleRole::v || role == ModuleRole::qkv))
        return;
    }
    fail(place, fmt::format("{} at {} cuts between heads, and this value has none; write features",
                            to_string(step), point));
  }

  void check_root(const std::string& point, const CollectiveStep& step, const TextPlace& place) const {
    if (step.kind != CollectiveStep::Kind::broadcast) return;
    int size = 1;
    for (const std::string& axis : step.axes) {
      size *= mesh_.axes[static_cast<std::size_t>(mesh_.axis_index(axis))].size;
    }
    if (size > 1 && step.root >= size) {
      fail(place, fmt::format("{} at {} has root {}, but the group has ranks 0 to {}", to_string(step),
                              point, step.root, size - 1));
    }
  }

  void place(const Module& module, ResolvedPlan& resolved) {
    const auto found = rules_.find(module.path);
    if (found == rules_.end()) return;
    ModulePlacement& placement = resolved.weights[module.path];
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      const auto cut = found->second->cuts.find(mesh_.axes[axis].name);
      if (cut == found->second->cuts.end() || !cut->second.sharded) continue;
      const bool rows = cuts_rows(module, cut->second);
      // Checked for a group of one too: whether a plan is well formed must not depend on the TP size.
      cut_dimension(module, cut->second, static_cast<int>(axis), rows, placement, resolved);
    }
  }

  bool cuts_rows(const Module& module, const WeightCut& cut) {
    switch (cut.dim) {
      case PlanDim::out:
        if (module.kind == ModuleKind::linear) return true;
        break;
      case PlanDim::in:
        if (module.kind == ModuleKind::linear) return false;
        break;
      case PlanDim::vocab:
        if (module.kind == ModuleKind::embedding || module.role == ModuleRole::lm_head) return true;
        break;
      case PlanDim::features:
        if (module.kind == ModuleKind::embedding) return false;
        if (module.kind == ModuleKind::norm) return true;
        break;
      default:
        break;
    }
    const std::string_view has = module.kind == ModuleKind::linear
                                     ? (module.role == ModuleRole::lm_head ? "out (vocab) and in"
                                                                           : "out and in")
                                 : module.kind == ModuleKind::embedding ? "vocab and features"
                                                                        : "features";
    fail(place_of(module), fmt::format("{} can't be cut that way: a weight of this kind has the dimensions {}",
                                       module.path, has));
  }

  /// Whose rows are the kv heads.
  static bool keys_or_values(const Module& module) {
    return module.role == ModuleRole::k || module.role == ModuleRole::v || module.role == ModuleRole::k_norm;
  }

  /// Elements of one unit of the cut dimension.
  std::int64_t unit_size(const Module& module, const WeightCut& cut, bool rows) {
    const auto refuse = [&](std::string_view why) -> std::int64_t {
      fail(place_of(module), fmt::format("{}: {}", module.path, why));
    };
    switch (cut.unit) {
      case CutUnit::row:
      case CutUnit::chunk:
        return 1;
      case CutUnit::head:
        if ((module.role == ModuleRole::q || module.role == ModuleRole::qkv) && rows)
          return config_.head_dim;
        if (module.role == ModuleRole::o && !rows) return config_.head_dim;
        if (module.role == ModuleRole::q_norm || module.role == ModuleRole::k_norm) {
          if (module.out == config_.head_dim && config_.num_heads > 1) return 1;  // check_partitions refuses it
          if (module.role == ModuleRole::q_norm) return config_.head_dim;
        }
        if (keys_or_values(module) && rows) {
          if (config_.num_kv_heads == config_.num_heads) return config_.head_dim;
          return refuse(fmt::format("has {} kv heads, not {} heads; cut it by kv_head",
                                    config_.num_kv_heads, config_.num_heads));
        }
        return refuse(
            "`by head` fits the rows of q, k, v or a fused qkv, the columns of o and norms of q or k");
      case CutUnit::kv_head:
        if (keys_or_values(module) && rows) {
          if (module.role == ModuleRole::k_norm && module.out != config_.kv_size()) return 1;  // likewise
          return config_.head_dim;
        }
        // A kv head and the q heads that it serves.
        if ((module.role == ModuleRole::q && rows) || (module.role == ModuleRole::o && !rows))
          return config_.head_dim * (config_.num_heads / config_.num_kv_heads);
        return refuse(
            "`by kv_head` fits the rows of q, k and v, the columns of o and a norm of k (a fused qkv is cut by "
            "head)");
      case CutUnit::group: {
        const std::int64_t group = info(model_.dtype(module.weight())).block_elements;
        if (group <= 1)
          return refuse(
              "`by group` needs a quantised checkpoint; this weight is stored unquantised");
        if (rows) return refuse("`by group` cuts columns (in): quantisation groups lie along them");
        return group;
      }
    }
    return 1;
  }

  void cut_dimension(const Module& module, const WeightCut& cut, int axis, bool rows,
                     ModulePlacement& placement, const ResolvedPlan& resolved) {
    const std::int64_t extent = rows ? module.out : module.in;
    const std::int64_t unit = unit_size(module, cut, rows);
    const int size = mesh_.axes[static_cast<std::size_t>(axis)].size;
    if (cut.unit == CutUnit::head && cut.ranges.empty())
      check_heads(module, axis, size, rows, placement);
    if (size == 1 && cut.ranges.find(1) == cut.ranges.end()) return;

    std::vector<Ranges>& owned = rows ? placement.rows : placement.cols;
    const std::vector<Ranges> before = owned;
    if (owned.empty()) owned.assign(static_cast<std::size_t>(mesh_.ranks()), Ranges{{0, extent}});
    const bool follows_q = cut.unit == CutUnit::kv_head && cut.ranges.empty() && keys_or_values(module);
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      Ranges& mine = owned[static_cast<std::size_t>(rank)];
      const int at = mesh_.coordinates(rank)[static_cast<std::size_t>(axis)];
      if (follows_q) {
        mine = kv_rows(module, rank, axis, placement, resolved);
      } else if (rows && cuts_sections(module, cut)) {
        mine = section_rows(module, mine, cut, size, at);
      } else if (!cut.ranges.empty()) {
        mine = explicit_part(module, cut, size, unit, mine, at);
      } else if (cut.unit == CutUnit::chunk) {
        mine = compose(mine, Partition::chunked(total(mine), size).of(at));
      } else {
        if (total(mine) % unit != 0) {
          fail(place_of(module), fmt::format("{}: {} elements are no multiple of the unit {}", module.path,
                                             total(mine), unit));
        }
        mine = compose(mine, Partition::balanced(total(mine), size, unit).of(at));
      }
    }
    if (size == 1 && same_indices(owned, before, extent)) {
      owned = before;  // nothing is cut
      return;
    }
    // By heads a fused q | k | v holds the kv heads that each rank's q heads need, and several may need one.
    const bool kv_of_heads = rows && cut.unit == CutUnit::head && !module.sections.empty() &&
                             config_.num_kv_heads < config_.num_heads;
    placement.may_overlap = placement.may_overlap ||
                            (cut.unit == CutUnit::kv_head && keys_or_values(module)) || kv_of_heads;
    if (size > 1) placement.cuts.push_back({axis, rows, cut.unit});
  }

  /// Whether all ranks hold what they held before a cut (empty: everything), once, in whatever order.
  static bool same_indices(const std::vector<Ranges>& owned, const std::vector<Ranges>& before, std::int64_t extent) {
    for (std::size_t rank = 0; rank < owned.size(); ++rank) {
      const Ranges was = before.empty() ? Ranges{{0, extent}} : before[rank];
      if (total(owned[rank]) != total(was) || normalized(owned[rank]) != normalized(was)) return false;
    }
    return true;
  }

  /// The part of `mine` that explicit ranges, in units, give to the rank at place `at`. Ranges that overlap, leave a gap
  /// or reach beyond the dimension are kept as they are (sharded/partition_rules.hpp reports them), those beyond it cut
  /// off one unit behind its end, so that no number overflows.
  Ranges explicit_part(const Module& module, const WeightCut& cut, int size, std::int64_t unit,
                       const Ranges& mine, int at) {
    const auto found = cut.ranges.find(size);
    if (found == cut.ranges.end()) {
      std::vector<int> sizes;
      for (const auto& [ranks, ranges] : cut.ranges) sizes.push_back(ranks);
      fail(place_of(module), fmt::format("{} lists ranges for {} ranks only, not for {}", module.path,
                                         fmt::join(sizes, ", "), size));
    }
    const std::int64_t extent = total(mine), last = extent / unit + 1;
    Ranges elements;
    for (const Range& range : found->second[static_cast<std::size_t>(at)]) {
      const Range scaled{std::clamp<std::int64_t>(range.begin, 0, last - 1) * unit,
                         std::clamp<std::int64_t>(range.end, 0, last) * unit};
      if (!elements.empty() && elements.back().end == scaled.begin) {
        elements.back().end = scaled.end;
      } else {
        elements.push_back(scaled);
      }
    }
    Ranges part = compose(mine, elements);
    for (const Range& range : elements) {
      const std::int64_t end = mine.empty() ? 0 : mine.back().end;
      if (range.end > extent) part.push_back({end, end + range.end - std::max(extent, range.begin)});
    }
    return part;
  }

  void check_heads(const Module& module, int axis, int size, bool rows,
                   const ModulePlacement& placement) {
    std::int64_t heads = config_.num_heads;
    for (const ModulePlacement::AxisCut& outer : placement.cuts) {
      if (outer.rows == rows) heads /= mesh_.axes[static_cast<std::size_t>(outer.axis)].size;
    }
    if (size > heads) {
      fail(place_of(module),
           fmt::format("{} is cut by head, and {} {} leave ranks without a head on {}={}; the largest size "
                       "that works is {} (explicit ranges may leave a rank without heads)",
                       module.path, heads, heads == 1 ? "head" : "heads",
                       mesh_.axes[static_cast<std::size_t>(axis)].name, size, heads));
    }
  }

  Ranges kv_rows(const Module& module, int rank, int axis, const ModulePlacement& cut_so_far,
                 const ResolvedPlan& resolved) {
    for (const Module& q : model_.modules()) {
      if (q.role != ModuleRole::q || q.layer != module.layer) continue;
      const ModulePlacement& placement = resolved.placement(q.path);
      if (placement.rows.empty()) return {{0, module.out}};
      // Ranks that this rank's k isn't cut against share it: their q heads count too.
      Ranges q_rows;
      for (int peer = 0; peer < mesh_.ranks(); ++peer) {
        const std::vector<int> here = mesh_.coordinates(rank), there = mesh_.coordinates(peer);
        const auto apart = [&](int along) {
          return here[static_cast<std::size_t>(along)] != there[static_cast<std::size_t>(along)];
        };
        if (apart(axis) || std::any_of(cut_so_far.cuts.begin(), cut_so_far.cuts.end(),
                                       [&](const auto& cut) { return cut.rows && apart(cut.axis); })) {
          continue;
        }
        const Ranges& theirs = placement.rows[static_cast<std::size_t>(peer)];
        q_rows.insert(q_rows.end(), theirs.begin(), theirs.end());
      }
      return kv_rows_for(config_, q_rows);
    }
    fail(place_of(module),
         fmt::format("{} is cut by kv_head, but its block has no q to follow", module.path));
  }

  /// Whether a fused tensor is cut section by section: by rows or heads. Chunks and explicit rows are of the whole.
  static bool cuts_sections(const Module& module, const WeightCut& cut) {
    return !module.sections.empty() &&
           (cut.unit == CutUnit::head || (cut.unit == CutUnit::row && cut.ranges.empty()));
  }

  /// A fused q | k | v. By rows: each section on its own. By heads: q, with k and v by the kv heads that those need.
  Ranges section_rows(const Module& module, const Ranges& mine, const WeightCut& cut, int size, int at) {
    Ranges result, q_rows;
    for (const Section& section : module.sections) {
      Ranges local;  // the part of this section that the rank holds so far, relative to the section
      for (const Range& range : mine) {
        const std::int64_t begin = std::max(range.begin, section.begin);
        const std::int64_t end = std::min(range.end, section.end);
        if (begin < end) local.push_back({begin - section.begin, end - section.begin});
      }
      const std::int64_t unit = cut.unit == CutUnit::row ? 1 : config_.head_dim;
      Ranges part;
      if (cut.unit == CutUnit::head && section.role != ModuleRole::q) {
        part = kv_rows_for(config_, q_rows);
      } else if (cut.ranges.empty()) {
        part = compose(local, Partition::balanced(total(local), size, unit).of(at));
      } else {
        part = explicit_part(module, cut, size, unit, local, at);
      }
      if (section.role == ModuleRole::q) q_rows = part;
      for (const Range& range : part)
        result.push_back({range.begin + section.begin, range.end + section.begin});
    }
    return result;
  }

  const Plan& plan_;
  const Model& model_;
  const Config& config_;
  const Mesh& mesh_;
  std::map<std::string, const WeightRule*> rules_;
};

}  // namespace

ResolvedPlan resolve(const Plan& plan, const Model& model, const Mesh& mesh) {
  return Resolver(plan, model, mesh).resolve();
}

}  // namespace shardcheck
