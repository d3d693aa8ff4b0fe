// SPDX-License-Identifier: Apache-2.0
#include "harness/import/assemble.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "harness/import/layout_words.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

constexpr const char* kAxis = "tp";

class Assembler {
 public:
  Assembler(const ModuleTable& modules, const JsonPlaces& places, const ImportOptions& options)
      : modules_(modules), places_(places), options_(options) {
    result_.plan.mesh = {kAxis};
  }

  ImportedPlan run(const ImportedRules& imported) {
    for (const ImportedRule& rule : imported.rules) add(rule);
    check_inputs(placed_, modules_, places_, options_.source);
    if (imported.every_linear) check_every_linear(*imported.every_linear);
    result_.plan.families[""] = std::move(section_);
    return std::move(result_);
  }

 private:
  void add(const ImportedRule& rule) {
    if (!rule.unchecked.empty()) return keep_unchecked(rule, rule.unchecked);
    const std::vector<SelectedModule> selected = modules_.select(rule);
    if (!selected.empty()) {
      for (const SelectedModule& at : selected) add(rule, at);
      return;
    }
    const std::vector<SelectedModule> ends = modules_.ends_of_block(rule.pattern, true);
    if (!ends.empty()) return add_block(rule);
    if (modules_.of_one_model()) {
      places_.fail_at(
          rule.place,
          fmt::format(
              "\"{}\" matches no module of the model that it could cut; did you mean \"{}\"?",
              rule.pattern, modules_.nearest(rule.pattern)));
    }
    keep_unchecked(rule, "no family that is known here has such a module");
  }

  void add(const ImportedRule& rule, const SelectedModule& at) {
    const Module& module = at.module->sample;
    claim(rule, at);
    placed_.push_back({at, &rule});
    WeightRule weight;
    weight.pattern = at.pattern;
    weight.cuts[kAxis] = cut_of(rule, module, places_, options_);
    section_.weights.push_back(std::move(weight));
    result_.remarks[at.pattern] = rule.remark.empty() ? rule.style : rule.style + ": " + rule.remark;
    const PlanDim features = module.role == ModuleRole::lm_head ? PlanDim::vocab : PlanDim::features;
    if (module.kind == ModuleKind::linear) {
      add_steps(rule, at.pattern + ".in", given(rule, module), wanted(rule), PlanDim::features);
    } else if (module.kind == ModuleKind::norm) {
      add_steps(rule, at.pattern + ".in", rule.input_given, rule.input_wanted, PlanDim::features);
    }
    add_steps(rule, at.pattern + ".out", made(rule), rule.output_left, features);
  }

  static Layout given(const ImportedRule& rule, const Module& module) {
    return rule.head_splits_input && module.role == ModuleRole::lm_head ? Layout::replicated
                                                                        : rule.input_given;
  }
  static Layout wanted(const ImportedRule& rule) {
    if (rule.cut == Cut::colwise) return Layout::replicated;
    return rule.cut == Cut::rowwise ? Layout::features : rule.input_wanted;
  }
  static Layout made(const ImportedRule& rule) {
    if (rule.cut == Cut::colwise) return Layout::features;
    return rule.cut == Cut::rowwise ? Layout::partial : rule.output_made;
  }

  /// A block's input is that of its first modules, which share it; its output is its last module's.
  void add_block(const ImportedRule& rule) {
    if (rule.cut != Cut::none) {
      places_.fail_at(
          rule.place,
          fmt::format("\"{}\": \"{}\" cuts a weight, but this is a block of several modules; "
                      "name the module",
                      rule.pattern, rule.style));
    }
    const bool input = rule.input_given != rule.input_wanted && rule.input_wanted != Layout::any;
    const bool output = rule.output_made != rule.output_left && rule.output_left != Layout::any;
    for (const bool first : {true, false}) {
      if (!(first ? input : output)) continue;
      const std::vector<SelectedModule> ends = modules_.ends_of_block(rule.pattern, first);
      if (ends.size() != 1 || !modules_.of_one_model()) {
        places_.fail_at(
            rule.place,
            fmt::format("\"{}\" is a block whose {} module depends on the family; pass --model",
                        rule.pattern, first ? "first" : "last"));
      }
      if (first)
        add_steps(rule, ends[0].pattern + ".in", rule.input_given, rule.input_wanted,
                  PlanDim::features);
      if (!first)
        add_steps(rule, ends[0].pattern + ".out", rule.output_made, rule.output_left,
                  PlanDim::features);
    }
    if (!input && !output) {
      result_.notes.push_back(
          fmt::format("{}: \"{}\" exchanges nothing and cuts nothing", rule.pattern, rule.style));
    }
  }

  void add_steps(const ImportedRule& rule, const std::string& point, Layout from, Layout to,
                 PlanDim features) {
    const std::optional<std::vector<CollectiveStep>> steps = steps_between(from, to, features, kAxis);
    if (!steps) {
      places_.fail_at(rule.style_place,
                      fmt::format("{}: \"{}\" asks for a value {} where it is {}; no collective "
                                  "does that",
                                  point, rule.style, describe(to), describe(from)));
    }
    if (steps->empty()) return;
    const auto [known, fresh] = collected_.emplace(point, &rule);
    if (!fresh) {
      places_.fail_at(rule.place,
                      fmt::format("{} is exchanged by \"{}\" already ({}); keep one", point,
                                  known->second->pattern, places_.line(known->second->place)));
    }
    section_.collectives.push_back({point, *steps, {}});
  }

  /// Each module has one rule.
  void claim(const ImportedRule& rule, const SelectedModule& at) {
    for (const PlacedRule& other : placed_) {
      if (other.at.module != at.module) continue;
      const bool apart = modules_.of_one_model() && !at.layers.empty()
                             ? std::none_of(at.layers.begin(), at.layers.end(),
                                            [&](std::int64_t layer) {
                                              return std::count(other.at.layers.begin(),
                                                                other.at.layers.end(), layer) > 0;
                                            })
                             : at.pattern != other.at.pattern;
      if (apart) continue;
      places_.fail_at(rule.place, fmt::format("{} has a rule already, \"{}\" ({}); keep one", at.pattern,
                                              other.rule->pattern, places_.line(other.rule->place)));
    }
  }

  void keep_unchecked(const ImportedRule& rule, const std::string& why) {
    section_.unchecked.push_back({rule.pattern, rule.style});
    result_.notes.push_back(
        fmt::format("{}: \"{}\" can't be checked yet: {}", rule.pattern, rule.style, why));
  }

  void check_every_linear(std::size_t place) {
    for (const KnownModule& module : modules_.modules()) {
      if (module.sample.kind != ModuleKind::linear) continue;
      const bool covered = std::any_of(placed_.begin(), placed_.end(), [&](const PlacedRule& p) {
        return p.at.module == &module && p.at.layers.size() == module.layers.size();
      });
      if (!covered) {
        places_.fail_at(
            place,
            fmt::format("every linear needs a rule here, and {} has none; add one (\"skip\" leaves "
                        "it whole)",
                        module.pattern));
      }
    }
  }

  const ModuleTable& modules_;
  const JsonPlaces& places_;
  const ImportOptions& options_;
  ImportedPlan result_;
  PlanSection section_;
  std::vector<PlacedRule> placed_;
  std::map<std::string, const ImportedRule*> collected_;
};

}  // namespace

ImportedPlan assemble(const ImportedRules& imported, const ModuleTable& modules,
                      const JsonPlaces& places, const ImportOptions& options) {
  return Assembler(modules, places, options).run(imported);
}

}  // namespace shardcheck
