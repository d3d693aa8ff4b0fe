// SPDX-License-Identifier: Apache-2.0
#include "harness/plan_explain.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sharded/plan_write.hpp"
#include "sharded/program.hpp"

namespace shardcheck {
namespace {

constexpr DType kStorage = DType::bf16;

/// "0-31", "0-15 + 32-47", "none".
std::string runs(const Ranges& ranges, std::int64_t unit = 1) {
  std::vector<std::string> words;
  for (const Range& range : normalized(ranges)) {
    const std::int64_t first = range.begin / unit, last = range.end / unit - 1;
    words.push_back(first == last ? std::to_string(first) : fmt::format("{}-{}", first, last));
  }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, " + "));
}

bool on_borders(const Ranges& ranges, std::int64_t unit) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return range.begin % unit == 0 && range.end % unit == 0;
  });
}

/// Rows of a section, counted from its beginning.
Ranges within(const Ranges& rows, const Section& section) {
  Ranges inside;
  for (const Range& range : rows) {
    const std::int64_t begin = std::max(range.begin, section.begin),
                       end = std::min(range.end, section.end);
    if (begin < end) inside.push_back({begin - section.begin, end - section.begin});
  }
  return inside;
}

std::string heads(const Ranges& ranges, std::int64_t head_dim, const char* what) {
  if (ranges.empty()) return "";
  if (!on_borders(ranges, head_dim)) return fmt::format(", cuts a {}", what);
  const std::string text = runs(ranges, head_dim);
  return fmt::format(", {}{} {}", what, text.find_first_of("-+") == std::string::npos ? "" : "s", text);
}

std::string heads_of(const Module& module, const Ranges& rows, const Ranges& cols,
                     const Config& config) {
  const std::int64_t d = config.head_dim;
  switch (module.role) {
    case ModuleRole::q:
      return heads(rows, d, "q head");
    case ModuleRole::k:
    case ModuleRole::v:
      return heads(rows, d, "kv head");
    case ModuleRole::o:
      return heads(cols, d, "q head");
    case ModuleRole::qkv: {
      if (module.sections.size() != 3) return "";
      return heads(within(rows, module.sections[0]), d, "q head") +
             heads(within(rows, module.sections[1]), d, "kv head");
    }
    default:
      return "";
  }
}

std::string share_words(const Module& module, const Ranges& rows, const Ranges& cols,
                        const Config& config) {
  const bool all_rows = total(rows) == module.out, all_cols = total(cols) == module.in;
  if (all_rows && all_cols) return "whole";
  std::string text;
  if (!all_rows) text = "rows " + runs(rows);
  if (!all_cols) text += (text.empty() ? "" : ", ") + std::string("columns ") + runs(cols);
  return text + heads_of(module, rows, cols, config);
}

/// The plan's words for a module: of the axes that cut it.
std::string cut_words(const PlanSection& section, const std::string& path, const Mesh& mesh) {
  for (const WeightRule& rule : section.weights) {
    if (!matches(rule.pattern, path)) continue;
    std::vector<std::string> words;
    for (const auto& [axis, cut] : rule.cuts) {
      if (!cut.sharded) continue;
      const std::string text = cut.ranges.empty()
                                   ? to_string(cut)
                                   : fmt::format("{} in the ranges it lists", to_string(cut));
      words.push_back(mesh.axes.size() == 1 ? text : fmt::format("{}: {}", axis, text));
    }
    if (!words.empty()) return fmt::format("{}", fmt::join(words, ", "));
  }
  return "replicate";
}

std::string any_layer(const std::string& path, std::int64_t layer) {
  if (layer < 0) return path;
  const std::string number = fmt::format(".{}.", layer);
  const std::size_t at = path.find(number);
  return at == std::string::npos ? path : path.substr(0, at) + ".*." + path.substr(at + number.size());
}

class Explainer {
 public:
  Explainer(const Model& model, const PlanSection& section, const Program& program)
      : config_(model.config()), section_(section), program_(program) {
    collect_steps();
  }

  std::vector<ExplainedGroup> groups() const {
    std::vector<ExplainedGroup> groups;
    std::int64_t layer = -1;
    ExplainedGroup current;
    const auto close = [&] {
      if (current.modules.empty()) return;
      const bool same = !groups.empty() && layer >= 0 && !groups.back().layers.empty() &&
                        alike(groups.back().modules, current.modules);
      if (same) {
        groups.back().layers.push_back(layer);
      } else {
        if (layer >= 0) current.layers = {layer};
        groups.push_back(std::move(current));
      }
      current = {};
    };
    for (const Module& module : program_.modules) {
      if (module.layer != layer) close();
      layer = module.layer;
      current.modules.push_back(explained(module));
    }
    close();
    return groups;
  }

 private:
  /// The point of a collective: its site is named after it, ".reduced" and the like behind, or after the module's output.
  static std::string_view point_of(const Instruction& instruction) {
    const std::string_view site = instruction.site;
    if (!site.starts_with(instruction.module)) return ".out";
    const std::string_view after = site.substr(instruction.module.size());
    for (const std::string_view point : {".in", ".stat"}) {
      if (after == point || after.starts_with(std::string(point) + ".")) return point;
    }
    return ".out";
  }

  bool is_whole(const Layout& layout) const {
    for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
      const bool whole = layout.placements[axis].kind == Placement::Kind::R;
      if (program_.mesh.axes[axis].size > 1 && !whole) return false;
    }
    return true;
  }

  /// Bytes for a token of the tensor that the group of rank 0 is about.
  std::int64_t payload(const Instruction& instruction) const {
    const Value& in = program_.value(instruction.inputs[0]);
    Ranges features;
    for (const int rank : program_.mesh.group(0, instruction.axes)) {
      const Ranges held = in.layout.feature_ranges(rank);
      features.insert(features.end(), held.begin(), held.end());
    }
    return total(normalized(features)) *
           static_cast<std::int64_t>(element_size(dtype_of(in.dtype, kStorage, kStorage)));
  }

  /// Steps in both phases as the program has them, by the module that they stand at.
  void collect_steps() {
    for (const auto& [phase, instructions] : program_.instructions) {
      for (const Instruction& instruction : instructions) {
        if (instruction.op != nullptr) continue;
        const Module* module = program_.find_module(instruction.module);
        if (module == nullptr) continue;
        ExplainedStep step;
        step.point = any_layer(instruction.module + std::string(point_of(instruction)), module->layer);
        step.words = to_string(instruction.collective);
        step.phases = std::string(name(phase));
        step.kind = instruction.collective.kind;
        step.op = instruction.collective.op;
        step.in_groups = !is_whole(program_.value(instruction.outputs[0]).layout);
        if (step.kind != CollectiveStep::Kind::slice) step.bytes_per_token = payload(instruction);
        std::vector<ExplainedStep>& known = steps_[instruction.module];
        const auto same = std::find_if(known.begin(), known.end(), [&](const ExplainedStep& other) {
          return other.point == step.point && other.words == step.words &&
                 other.phases.find(step.phases) == std::string::npos;
        });
        if (same == known.end()) {
          known.push_back(std::move(step));
        } else {
          same->phases += ", " + step.phases;
        }
      }
    }
  }

  ExplainedModule explained(const Module& module) const {
    ExplainedModule result;
    result.path = any_layer(module.path, module.layer);
    result.module = module;
    result.cut = cut_words(section_, module.path, program_.mesh);
    for (int rank = 0; rank < program_.mesh.ranks(); ++rank) {
      ExplainedShare share{program_.plan.rows_of(module, rank), program_.plan.cols_of(module, rank),
                           ""};
      share.words = share_words(module, share.rows, share.cols, config_);
      result.shares.push_back(std::move(share));
    }
    const auto steps = steps_.find(module.path);
    if (steps != steps_.end()) result.steps = steps->second;
    return result;
  }

  static bool alike(const std::vector<ExplainedModule>& a, const std::vector<ExplainedModule>& b) {
    return std::equal(
        a.begin(), a.end(), b.begin(), b.end(), [](const ExplainedModule& x, const ExplainedModule& y) {
          return x.path == y.path && x.cut == y.cut && x.module.out == y.module.out &&
                 x.module.in == y.module.in &&
                 std::equal(x.shares.begin(), x.shares.end(), y.shares.begin(), y.shares.end(),
                            [](const ExplainedShare& s, const ExplainedShare& t) {
                              return s.rows == t.rows && s.cols == t.cols;
                            }) &&
                 std::equal(x.steps.begin(), x.steps.end(), y.steps.begin(), y.steps.end(),
                            [](const ExplainedStep& s, const ExplainedStep& t) {
                              return s.point == t.point && s.words == t.words && s.phases == t.phases &&
                                     s.bytes_per_token == t.bytes_per_token;
                            });
        });
  }

  const Config& config_;
  const PlanSection& section_;
  const Program& program_;
  std::map<std::string, std::vector<ExplainedStep>> steps_;
};

}  // namespace

PlanExplanation explain(const Model& model, const Plan& plan, const Mesh& mesh, const Registry& ops) {
  const Program program = build_program(model, resolve(plan, model, mesh), ops);
  const PlanSection& section = section_for(plan, model.config().model_type);
  PlanExplanation result;
  result.model = model.config().name;
  result.plan = plan.name;
  result.origin = plan.origin;
  result.mesh = mesh;
  result.groups = Explainer(model, section, program).groups();
  result.unchecked = section.unchecked;
  result.broken_rules = program.findings.size();
  result.weights_of_rank.assign(static_cast<std::size_t>(mesh.ranks()), 0);
  for (const Module& module : program.modules) {
    // A tied head is the embedding's weight again; cut otherwise, it is held a second time.
    result.weights += module.tied_to ? 0 : module.out * module.in;
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const bool held = module.tied_to && *module.tied_to != module.path &&
                        program.plan.placement(*module.tied_to).rows ==
                            program.plan.placement(module.path).rows &&
                        program.plan.placement(*module.tied_to).cols ==
                            program.plan.placement(module.path).cols;
      if (held) continue;
      result.weights_of_rank[static_cast<std::size_t>(rank)] += total(program.plan.rows_of(module,
                                                                                           rank)) *
                                                                total(program.plan.cols_of(module,
                                                                                           rank));
    }
  }
  return result;
}

}  // namespace shardcheck
