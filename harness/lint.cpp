// SPDX-License-Identifier: Apache-2.0
#include "harness/lint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>

#include "harness/lint_waste.hpp"
#include "harness/quantisation_groups.hpp"
#include "harness/report_json.hpp"
#include "sharded/op.hpp"
#include "sharded/partition_rules.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

struct Unfolded {
  Finding finding;
  std::optional<std::int64_t> bytes;
};

/// Puts `*` for every layer number of the paths in `text` and returns the first; -1 where there is none.
std::int64_t take_layer(std::string& text) {
  std::int64_t first = -1;
  for (const std::string_view container : {"layers.", "h."}) {
    for (std::size_t at = text.find(container); at != std::string::npos; at = text.find(container, at + 1)) {
      const std::size_t begin = at + container.size();
      std::int64_t layer = -1;
      const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), layer);
      if (error != std::errc()) continue;
      if (first < 0) first = layer;
      text.replace(begin, static_cast<std::size_t>(end - (text.data() + begin)), "*");
    }
    if (first >= 0) return first;
  }
  return first;
}

std::string with_layer(const std::string& text, const std::string& layer) {
  const std::size_t at = text.find('*');
  return at == std::string::npos ? text : text.substr(0, at) + layer + text.substr(at + 1);
}

Severity severity_of(const std::string& rule) {
  const PlacementRule* known = find_placement_rule(rule);
  return known == nullptr ? Severity::error : known->severity;
}

auto alike(const LintFinding& entry) {
  const Finding& f = entry.finding;
  return std::tie(f.rule, f.tap, f.op, f.axis, f.met, f.required, f.fix, entry.bytes);
}

/// Layers with the same finding become one: a model of 80 layers repeats each mistake 80 times.
std::vector<LintFinding> folded(const std::vector<Unfolded>& findings) {
  std::vector<LintFinding> result;
  std::vector<const Finding*> first;  // as it was, of each entry
  for (const Unfolded& one : findings) {
    LintFinding entry{severity_of(one.finding.rule), one.finding, {}, one.bytes};
    const std::int64_t layer = take_layer(entry.finding.tap);
    if (layer >= 0) {
      take_layer(entry.finding.fix);
      take_layer(entry.finding.sentence);
    }
    const auto same = std::find_if(result.begin(), result.end(), [&](const LintFinding& other) {
      return alike(other) == alike(entry);
    });
    if (same == result.end()) first.push_back(&one.finding);
    LintFinding& home = same == result.end() ? result.emplace_back(std::move(entry)) : *same;
    if (layer >= 0) home.layers.push_back(layer);
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    std::vector<std::int64_t>& layers = result[i].layers;
    std::sort(layers.begin(), layers.end());
    layers.erase(std::unique(layers.begin(), layers.end()), layers.end());
    // The fix may lie in the layer after the tap's.
    if (layers.size() == 1) result[i].finding = *first[i];
  }
  std::stable_sort(result.begin(), result.end(), [](const LintFinding& a, const LintFinding& b) {
    return a.severity < b.severity;
  });
  return result;
}

/// What the plan keeps of another project's plan, unchecked.
std::vector<LintFinding> unchecked_styles(const PlanSection& section) {
  std::vector<LintFinding> notes;
  for (const UncheckedRule& rule : section.unchecked) {
    LintFinding& note = notes.emplace_back();
    note.finding.rule = "unchecked_style";
    note.severity = severity_of(note.finding.rule);
    note.finding.op = "plan";
    note.finding.tap = rule.pattern;
    note.finding.met = rule.style;
    note.finding.sentence = "no rule of a plan can say this yet, so this part of the plan is not checked";
  }
  return notes;
}

std::string block(const LintFinding& entry, const std::string& plan) {
  const Finding& f = entry.finding;
  const std::string where = layers_text(entry.layers);
  const std::string tap = entry.layers.size() > 1 ? with_layer(f.tap, where) : f.tap;
  std::string out;
  if (entry.bytes) {
    out = fmt::format("{}: {}: {} at {} on {} wastes {} bytes per token{}\n", plan,
                      name(entry.severity), f.op, tap, f.axis, *entry.bytes,
                      entry.layers.size() > 1 ? " and layer" : "");
  } else if (f.op == "plan") {
    out = fmt::format("{}: {}: \"{}\": \"{}\" is kept unchecked\n", plan, name(entry.severity), f.tap, f.met);
  } else if (f.rule == "tokens_differ" && f.op.ends_with(")")) {
    out = fmt::format("{}: {} is {} on {} after {}, but what reads it needs {}\n", plan, tap, f.met,
                      f.axis, f.op, f.required);
  } else if (f.op == "weight") {
    const std::string of_axis = f.met.find("rank") == std::string::npos ? "" : " of " + f.axis;
    out = fmt::format("{}: {}{} has {}{}, but needs {}\n", plan,
                      entry.severity == Severity::error ? "" : fmt::format("{}: ", name(entry.severity)), tap,
                      f.met, of_axis, f.required);
  } else {
    out = fmt::format("{}: {} is {} on {}, {} needs {}\n", plan, tap, f.met, f.axis, f.op, f.required);
  }
  out += fmt::format("  rule  {}: {}\n", f.rule, f.sentence);
  if (!f.fix.empty()) out += fmt::format("  fix   {}\n", f.fix);
  return out;
}

}  // namespace

std::size_t MeshLint::count(Severity severity) const {
  return static_cast<std::size_t>(std::count_if(
      findings.begin(), findings.end(),
      [severity](const LintFinding& finding) { return finding.severity == severity; }));
}

std::size_t LintReport::count(Severity severity) const {
  std::size_t sum = 0;
  for (const MeshLint& mesh : meshes) sum += mesh.count(severity);
  return sum;
}

std::vector<LintFinding> lint(const Program& program) {
  std::vector<Unfolded> all;
  for (const Finding& finding : program.findings) all.push_back({finding, std::nullopt});
  // Once more, as the program is now: its plan or modules may have been changed since it was built.
  for (Finding& finding : check_partitions(program.config, program.modules, program.plan).findings) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const Unfolded& other) {
      return other.finding.rule == finding.rule && other.finding.tap == finding.tap;
    });
    if (!known) all.push_back({std::move(finding), std::nullopt});
  }
  for (WastedExchange& waste : wasted_exchanges(program)) all.push_back({std::move(waste.finding), waste.bytes});
  return folded(all);
}

LintReport lint(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                const Registry& ops, const LintOptions& options) {
  LintReport report{model.config().name, plan.name, plan.origin, {}};
  for (const Mesh& mesh : meshes) {
    ResolvedPlan resolved = resolve(plan, model, mesh);
    if (options.edit_plan && mesh.ranks() > 1) options.edit_plan(resolved);
    Program program = build_program(model, resolved, ops);
    if (options.edit_program && mesh.ranks() > 1) options.edit_program(program);
    report.meshes.push_back({mesh, lint(program)});
    std::vector<LintFinding>& findings = report.meshes.back().findings;
    std::vector<Unfolded> groups;
    for (Finding& finding : quantisation_groups(model, program.plan)) groups.push_back({std::move(finding), std::nullopt});
    for (LintFinding& entry : folded(groups)) findings.push_back(std::move(entry));
    for (LintFinding& entry : unchecked_styles(section_for(plan, model.config().model_type)))
      findings.push_back(std::move(entry));
    std::stable_sort(findings.begin(), findings.end(), [](const LintFinding& a, const LintFinding& b) {
      return a.severity < b.severity;
    });
  }
  return report;
}

std::string layers_text(const std::vector<std::int64_t>& layers) {
  std::vector<std::string> runs;
  for (std::size_t begin = 0; begin < layers.size();) {
    std::size_t end = begin + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    runs.push_back(end - begin == 1 ? std::to_string(layers[begin])
                                    : fmt::format("{}-{}", layers[begin], layers[end - 1]));
    begin = end;
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

std::string findings_text(const std::vector<Finding>& findings, const std::string& plan) {
  std::vector<Unfolded> all;
  for (const Finding& finding : findings) all.push_back({finding, std::nullopt});
  std::string out;
  for (const LintFinding& entry : folded(all)) out += block(entry, plan);
  return out;
}

std::string lint_text(const LintReport& report) {
  std::string out;
  for (const MeshLint& mesh : report.meshes) {
    if (report.meshes.size() > 1 && !mesh.findings.empty()) out += to_string(mesh.mesh) + "\n";
    for (const LintFinding& entry : mesh.findings) out += block(entry, report.origin);
  }
  const std::size_t errors = report.count(Severity::error), warnings = report.count(Severity::warning);
  std::vector<std::string> meshes;
  for (const MeshLint& mesh : report.meshes) meshes.push_back(to_string(mesh.mesh));
  const std::size_t notes = report.count(Severity::note);
  return out + fmt::format("{} under plan {} at {}: {}, {} error{}, {} warning{}{}\n", report.model,
                           report.plan, fmt::join(meshes, "; "),
                           report.passed() ? "legal" : "not legal", errors, errors == 1 ? "" : "s",
                           warnings, warnings == 1 ? "" : "s",
                           notes == 0 ? "" : fmt::format(", {} note{}", notes, notes == 1 ? "" : "s"));
}

std::string lint_json(const LintReport& report) {
  Json json;
  json["schema"] = "shardcheck.lint/1";
  json["model"] = report.model;
  json["plan"] = report.plan;
  json["verdict"] = report.passed() ? "passed" : "failed";
  json["meshes"] = Json::array();
  json["findings"] = Json::array();
  for (const MeshLint& mesh : report.meshes) {
    const Json sizes = mesh_json(mesh.mesh);
    json["meshes"].push_back(sizes);
    for (const LintFinding& entry : mesh.findings) {
      const Finding& f = entry.finding;
      json["findings"].push_back(
          {{"mesh", sizes},
           {"severity", name(entry.severity)},
           {"rule", f.rule},
           {"op", f.op},
           {"tap", f.tap},
           {"layers", entry.layers.empty() ? Json(nullptr) : Json(layers_text(entry.layers))},
           {"axis", f.axis},
           {"met", f.met},
           {"required", f.required},
           {"fix", f.fix},
           {"sentence", f.sentence},
           {"bytes", entry.bytes ? Json(*entry.bytes) : Json(nullptr)}});
    }
  }
  return json.dump(1) + "\n";
}

}  // namespace shardcheck
