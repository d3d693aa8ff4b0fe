// SPDX-License-Identifier: Apache-2.0
#include "harness/lint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>

#include "sharded/op.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;
using Kind = CollectiveStep::Kind;

constexpr std::int64_t kElementBytes = 2;  // bf16, fp16

struct Unfolded {
  Finding finding;
  std::optional<std::int64_t> bytes;
};

/// Puts `*` for the layer number of a path in `text` and returns the number; -1 where there is none.
std::int64_t take_layer(std::string& text) {
  for (const std::string_view container : {"layers.", "h."}) {
    const std::size_t at = text.find(container);
    if (at == std::string::npos) continue;
    const std::size_t begin = at + container.size();
    std::int64_t layer = -1;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), layer);
    if (error != std::errc()) continue;
    text.replace(begin, static_cast<std::size_t>(end - (text.data() + begin)), "*");
    return layer;
  }
  return -1;
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
    if (layer >= 0) take_layer(entry.finding.fix);
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

bool moves_only(const Instruction& instruction) {
  const Kind kind = instruction.collective.kind;
  return instruction.op == nullptr &&
         (kind == Kind::all_gather || kind == Kind::slice || kind == Kind::all_to_all);
}

/// Collectives whose result the ranks had before: a broadcast of a replicated value, and a pair of moves of which the
/// second undoes the first, if nobody else reads what lies between.
void add_redundant(const Program& program, Phase phase, std::vector<Unfolded>& found) {
  const std::vector<Instruction>& instructions = program.instructions.at(phase);
  std::unordered_map<int, const Instruction*> producer;
  std::unordered_map<int, int> readers;
  for (const Instruction& instruction : instructions) {
    for (const int output : instruction.outputs) producer[output] = &instruction;
    for (const int input : instruction.inputs) ++readers[input];
  }
  const auto report = [&](const Instruction& wasted, const std::string& op, const Layout& before,
                          const Layout& whole, std::int64_t calls, const std::string& sentence) {
    const int axis = wasted.axes.front();
    const std::string required = to_string(before.placements[static_cast<std::size_t>(axis)]);
    const Finding finding{"redundant_collective",
                          op,
                          wasted.site,
                          program.mesh.axes[static_cast<std::size_t>(axis)].name,
                          required,
                          required,
                          "",
                          sentence};
    const bool known = std::any_of(found.begin(), found.end(), [&](const Unfolded& other) {
      return other.finding.rule == finding.rule && other.finding.tap == finding.tap &&
             other.finding.op == finding.op;
    });
    if (!known) found.push_back({finding, calls * whole.features * kElementBytes});
  };
  for (const Instruction& second : instructions) {
    if (second.op != nullptr) continue;
    const Layout& between = program.value(second.inputs[0]).layout;
    if (second.collective.kind == Kind::broadcast) {
      const bool whole = std::all_of(second.axes.begin(), second.axes.end(), [&](int axis) {
        return between.placements[static_cast<std::size_t>(axis)].kind == Placement::Kind::R;
      });
      if (whole) {
        report(second, to_string(second.collective), between, between, 1,
               "every rank holds this value already; leave the broadcast out");
      }
      continue;
    }
    const auto made = producer.find(second.inputs[0]);
    if (!moves_only(second) || made == producer.end() || !moves_only(*made->second)) continue;
    const Instruction& first = *made->second;
    const Layout& before = program.value(first.inputs[0]).layout;
    const Layout& after = program.value(second.outputs[0]).layout;
    if (readers[second.inputs[0]] != 1 || before.any_partial() || !(before == after)) continue;
    const std::int64_t calls = (first.collective.kind == Kind::slice ? 0 : 1) +
                               (second.collective.kind == Kind::slice ? 0 : 1);
    report(second, fmt::format("{}, {}", to_string(first.collective), to_string(second.collective)),
           before, between, calls, "the second step undoes the first; leave both out");
  }
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
  for (const auto& [phase, instructions] : program.instructions) add_redundant(program, phase, all);
  return folded(all);
}

LintReport lint(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                const Registry& ops) {
  LintReport report{model.config().name, plan.name, plan.origin, {}};
  for (const Mesh& mesh : meshes)
    report.meshes.push_back({mesh, lint(build_program(model, resolve(plan, model, mesh), ops))});
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
  return out + fmt::format("{} under plan {} at {}: {}, {} error{}, {} warning{}\n", report.model,
                           report.plan, fmt::join(meshes, "; "),
                           report.passed() ? "legal" : "not legal", errors, errors == 1 ? "" : "s",
                           warnings, warnings == 1 ? "" : "s");
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
    Json sizes;
    for (const Mesh::Axis& axis : mesh.mesh.axes) sizes[axis.name] = axis.size;
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
