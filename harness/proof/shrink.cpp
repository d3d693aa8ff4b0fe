// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/shrink.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>

#include "harness/proof/proof_steps.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t Config::*kFields[] = {&Config::head_dim, &Config::hidden_size,
                                             &Config::intermediate_size, &Config::vocab_size,
                                             &Config::max_positions};
constexpr std::size_t kCount = std::size(kFields);
constexpr std::size_t kHeadDim = 0, kPositions = 4;

/// A width as a sum of coefficients times fields, plus a constant.
struct Width {
  std::array<std::int64_t, kCount> coefficients{};
  std::int64_t constant = 0;

  auto operator<=>(const Width&) const = default;
  std::int64_t at(const Config& config) const {
    std::int64_t sum = constant;
    for (std::size_t f = 0; f < kCount; ++f) sum += coefficients[f] * (config.*kFields[f]);
    return sum;
  }
};

/// The widths of one module: rows (or those of each section), columns.
struct ModuleWidths {
  std::vector<Width> rows;
  Width all_rows, cols;
};

std::vector<std::int64_t> widths_of(const Module& module) {
  std::vector<std::int64_t> widths{module.out, module.in};
  for (const Section& section : module.sections) widths.push_back(section.end - section.begin);
  return widths;
}

/// What each module's widths are made of, found by changing one field of the config at a time.
std::vector<ModuleWidths> probe(const Config& config) {
  constexpr std::int64_t kStep = 2;  // head_dim stays even
  const std::vector<Module> before = modules(config);
  std::vector<std::vector<Width>> widths;
  for (const Module& module : before) {
    std::vector<Width>& of_module = widths.emplace_back();
    for (const std::int64_t width : widths_of(module)) of_module.push_back({{}, width});
  }
  for (std::size_t f = 0; f < kCount; ++f) {
    Config changed = config;
    changed.*kFields[f] += kStep;
    const std::vector<Module> after = modules(changed);
    for (std::size_t m = 0; m < before.size(); ++m) {
      const std::vector<std::int64_t> was = widths_of(before[m]), is = widths_of(after[m]);
      for (std::size_t i = 0; i < was.size(); ++i) {
        Width& width = widths[m][i];
        width.coefficients[f] = (is[i] - was[i]) / kStep;
        width.constant -= width.coefficients[f] * (config.*kFields[f]);
      }
    }
  }
  std::vector<ModuleWidths> result;
  for (const std::vector<Width>& of_module : widths) {
    ModuleWidths entry{{of_module.begin() + 2, of_module.end()}, of_module[0], of_module[1]};
    if (entry.rows.empty()) entry.rows.push_back(entry.all_rows);
    result.push_back(std::move(entry));
  }
  return result;
}

/// What the plan asks of each field of the config.
class Shrinker {
 public:
  Shrinker(const Model& model, const Plan& plan, const ResolvedPlan& resolved, const ShrinkLimits& limits)
      : model_(model), config_(model.config()), resolved_(resolved), limits_(limits) {
    widths_ = probe(config_);
    modulus_.fill(1);
    least_.fill(1);
    modulus_[kHeadDim] = 2;
    least_[kHeadDim] = limits.least_head_dim;
    // What isn't cut could be, by a plan that is wrong.
    const std::int64_t ranks = resolved.mesh.ranks();
    for (std::size_t f = 1; f < kPositions; ++f) least_[f] = limits.units_per_rank * ranks;
    least_[kPositions] = kMostProofTokens;
    const PlanSection& section = section_for(plan, config_.model_type);
    for (std::size_t m = 0; m < widths_.size(); ++m) {
      const Module& module = model.modules()[m];
      for (const WeightRule& rule : section.weights) {
        if (!matches(rule.pattern, module.path)) continue;
        cuts_of(module, widths_[m], rule);
        ranges_of_one(module, widths_[m], rule);
      }
      points_of(module, widths_[m]);
    }
  }

  Config shrink() const {
    Config config = config_;
    std::set<std::size_t> settled;
    // Widths of the attention first: the others give way to them.
    for (std::size_t f = 0; f < kCount; ++f) {
      settled.insert(f);
      config.*kFields[f] = start(f);
      while (collides(config, settled)) config.*kFields[f] += modulus_[f];
    }
    for (std::optional<std::int64_t>& window : config.windows) {
      if (window) window = std::min(*window, limits_.largest_window);
    }
    return config;
  }

 private:
  void cuts_of(const Module& module, const ModuleWidths& widths, const WeightRule& rule) {
    for (const ModulePlacement::AxisCut& cut : resolved_.placement(module.path).cuts) {
      const Mesh::Axis& axis = resolved_.mesh.axes[static_cast<std::size_t>(cut.axis)];
      const auto found = rule.cuts.find(axis.name);
      if (found == rule.cuts.end()) continue;
      const WeightCut& how = found->second;
      // Heads stay, so a cut between heads is the same at any head_dim.
      const bool heads = how.unit == CutUnit::head || how.unit == CutUnit::kv_head;
      const bool whole = !cut.rows || how.unit == CutUnit::chunk || !how.ranges.empty();
      const std::vector<Width> sides = !cut.rows ? std::vector<Width>{widths.cols}
                                       : whole   ? std::vector<Width>{widths.all_rows}
                                                 : widths.rows;
      if (heads) continue;
      for (const Width& side : sides) {
        if (!how.ranges.empty()) {
          keep(side);
          continue;
        }
        const std::int64_t unit = how.unit == CutUnit::group
                                      ? info(model_.dtype(module.weight())).block_elements
                                      : 1;
        cut_into(side, unit * ranks_cutting(module, cut.rows), unit, how.unit == CutUnit::chunk);
      }
    }
  }

  /// Ranges that the plan lists for an axis of one rank cut nothing, but must be those of the same width.
  void ranges_of_one(const Module& module, const ModuleWidths& widths, const WeightRule& rule) {
    for (const auto& [name, how] : rule.cuts) {
      const Mesh::Axis& axis = resolved_.mesh.axes[static_cast<std::size_t>(resolved_.mesh.axis_index(name))];
      if (axis.size != 1 || how.ranges.count(1) == 0) continue;
      if (how.unit == CutUnit::head || how.unit == CutUnit::kv_head) continue;
      const bool columns =
          how.dim == PlanDim::in || (how.dim == PlanDim::features && module.kind == ModuleKind::embedding);
      keep(columns ? widths.cols : widths.all_rows);
    }
  }

  std::int64_t ranks_cutting(const Module& module, bool rows) const {
    std::int64_t ranks = 1;
    for (const ModulePlacement::AxisCut& cut : resolved_.placement(module.path).cuts) {
      if (cut.rows == rows) ranks *= resolved_.mesh.axes[static_cast<std::size_t>(cut.axis)].size;
    }
    return ranks;
  }

  /// Activations that a collective cuts along their features.
  void points_of(const Module& module, const ModuleWidths& widths) {
    for (const auto& [phase, points] : resolved_.points) {
      for (const auto& [side, width] :
           {std::pair<const char*, const Width*>{".out", &widths.all_rows}, {".in", &widths.cols}}) {
        const auto found = points.find(module.path + side);
        if (found == points.end()) continue;
        const bool table = module.kind == ModuleKind::embedding;  // its output is as wide as its columns
        const bool norm = module.kind == ModuleKind::norm;  // its input is as wide as its rows
        const Width& cut = table ? widths.cols : norm ? widths.all_rows : *width;
        for (const CollectiveStep& step : found->second) {
          if (activation_dim(step.dim) != Dim::features) continue;
          if (step.dim == PlanDim::head || step.dim == PlanDim::kv_head) continue;
          std::int64_t ranks = 1;
          for (const std::string& axis : step.axes) {
            ranks *= resolved_.mesh.axes[static_cast<std::size_t>(resolved_.mesh.axis_index(axis))].size;
          }
          cut_into(cut, ranks, 1, false);
        }
      }
    }
  }

  void keep(const Width& width) {
    for (std::size_t f = 0; f < kCount; ++f) {
      if (width.coefficients[f] != 0) kept_.insert(f);
    }
  }

  /// The width stays the same modulo `unit_ranks` and holds enough units; with chunks the same ranks run short.
  void cut_into(const Width& width, std::int64_t unit_ranks, std::int64_t unit, bool chunks) {
    for (std::size_t f = 0; f < kCount; ++f) {
      const std::int64_t c = width.coefficients[f];
      if (c == 0) continue;
      std::int64_t least = limits_.units_per_rank * unit_ranks;
      if (chunks) {
        const std::int64_t ranks = unit_ranks / unit;
        const std::int64_t lacking = (ranks - width.at(config_) % ranks) % ranks;
        // ceil(n/P) above what the last ranks lack: only the last one is short, as it is in a large tensor.
        if (width.at(config_) / ranks > lacking) least = std::max(least, ranks * (lacking + 1));
      }
      modulus_[f] = std::lcm(modulus_[f], unit_ranks / std::gcd(c, unit_ranks));
      least_[f] = std::max(least_[f], (least + c - 1) / c);
    }
  }

  /// The least value of a field that the rules allow, before widths are made different.
  std::int64_t start(std::size_t f) const {
    const std::int64_t n = config_.*kFields[f];
    if (kept_.count(f) != 0 || !used(f) || n <= least_[f]) return n;
    const std::int64_t m = modulus_[f];
    const std::int64_t up = ((n - least_[f]) % m + m) % m;
    return std::min(n, least_[f] + up);
  }

  bool used(std::size_t f) const {
    return std::any_of(widths_.begin(), widths_.end(), [f](const ModuleWidths& module) {
      return module.all_rows.coefficients[f] != 0 || module.cols.coefficients[f] != 0;
    });
  }

  /// Two widths that are settled and are different expressions have one value.
  bool collides(const Config& config, const std::set<std::size_t>& settled) const {
    const std::size_t last = *settled.rbegin();
    if (kept_.count(last) != 0 || !used(last)) return false;
    std::map<std::int64_t, Width> known;
    for (const Width& width : expressions()) {
      bool whole = true;
      for (std::size_t f = 0; f < kCount; ++f)
        whole = whole && (width.coefficients[f] == 0 || settled.count(f) != 0);
      if (!whole) continue;
      const auto [entry, fresh] = known.emplace(width.at(config), width);
      const auto of_last = [last](const Width& w) { return w.coefficients[last] != 0; };
      if (!fresh && (of_last(width) || of_last(entry->second))) return true;
    }
    return false;
  }

  /// All widths, the fields themselves, and the numbers of heads.
  std::set<Width> expressions() const {
    std::set<Width> all;
    for (const ModuleWidths& module : widths_) {
      all.insert(module.rows.begin(), module.rows.end());
      all.insert({module.all_rows, module.cols});
    }
    for (std::size_t f = 0; f < kCount; ++f) {
      Width field;
      field.coefficients[f] = 1;
      if (used(f)) all.insert(field);
    }
    all.insert({{}, config_.num_heads});
    all.insert({{}, config_.num_kv_heads});
    return all;
  }

  const Model& model_;
  const Config& config_;
  const ResolvedPlan& resolved_;
  const ShrinkLimits limits_;
  std::vector<ModuleWidths> widths_;  // by module
  std::array<std::int64_t, kCount> modulus_, least_;
  std::set<std::size_t> kept_;
};

}  // namespace

Config shrunken(const Model& model, const Plan& plan, const ResolvedPlan& resolved,
                const ShrinkLimits& limits) {
  return Shrinker(model, plan, resolved, limits).shrink();
}

}  // namespace shardcheck
