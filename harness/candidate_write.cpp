// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness/candidate.hpp"
#include "harness/candidate_names.hpp"
#include "harness/report_json.hpp"
#include "model/error.hpp"
#include "model/safetensors.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

Json ranges_json(const Ranges& ranges) {
  Json json = Json::array();
  for (const Range& range : ranges) json.push_back({range.begin, range.end});
  return json;
}

/// Placement by axis, those that cut tokens in their order, outer first; and the ranges of every rank: features where the
/// value is cut along them, the table's rows where it is an embedding's partial sum.
Json placement_json(const Program& program, const TapValue& value) {
  Json json;
  std::vector<int> axes = value.layout.row_axes;
  for (int axis = 0; axis < static_cast<int>(program.mesh.axes.size()); ++axis) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
  }
  for (const int axis : axes) {
    const auto i = static_cast<std::size_t>(axis);
    json[program.mesh.axes[i].name] = to_string(value.layout.placements[i]);
  }
  const Module* table = value.layout.any_partial() ? program.find_module(stage_of(value.name).module)
                                                   : nullptr;
  const bool is_table = table != nullptr && table->kind == ModuleKind::embedding;
  const std::vector<Ranges>& features = value.layout.owned;
  const auto add = [&json](const char* key, const std::vector<Ranges>& owned) {
    json[key] = Json::array();
    for (const Ranges& ranges : owned) json[key].push_back(ranges_json(ranges));
  };
  if (!features.empty()) add("ranges", features);
  if (is_table) add(features.empty() ? "ranges" : "rows", program.plan.placement(table->path).rows);
  return json;
}

/// One line per step, rank and tap, so that a person can read and edit it.
std::string text(const Json& manifest) {
  std::string out = "{";
  for (const auto& [key, value] : manifest.items()) {
    out += fmt::format("{}\n{}: ", out.size() > 1 ? "," : "", Json(key).dump());
    const bool lines = key == "steps" || key == "ranks" || key == "taps";
    if (!lines) {
      out += value.dump();
      continue;
    }
    out += value.is_array() ? "[" : "{";
    std::string separator;
    for (const auto& [name, element] : value.items()) {
      out += separator + "\n  ";
      if (!value.is_array()) out += Json(name).dump() + ": ";
      out += element.dump();
      separator = ",";
    }
    out += value.is_array() ? "]" : "}";
  }
  return out + "\n}\n";
}

/// "layers.3.mlp.act" -> "layers.*.mlp.act": layers are cut alike, so one pattern serves all of them.
std::string layer_pattern(const std::string& tap) {
  for (const char* container : {"layers.", "h."}) {
    if (tap.rfind(container, 0) != 0) continue;
    const std::size_t begin = std::string_view(container).size();
    const std::size_t end = tap.find('.', begin);
    return std::string(container) + "*" + (end == std::string::npos ? "" : tap.substr(end));
  }
  return tap;
}

}  // namespace

void write_candidate(const std::filesystem::path& folder, const Program& program, const TapRun& run,
                     const Sequences& sequences) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw InputError(fmt::format("{}: can't be created: {}", folder.string(), error.message()));
  const Mesh& mesh = program.mesh;
  Json manifest;
  manifest["schema"] = "shardcheck.taps/1";
  manifest["mesh"] = mesh_json(mesh);
  manifest["dtype"] = name(run.storage);
  manifest["wire"] = name(run.wire);
  manifest["reduction"] = {{"order", name(run.reduction.order)}, {"hop", name(run.reduction.hop)}};
  manifest["ids"] = sequences;
  manifest["steps"] = Json::array();
  std::map<std::string, Json> taps;
  for (const StepTaps& step : run.steps) {
    Json tokens = Json::array();
    for (const StepSequence& s : step.step.sequences)
      tokens.push_back({s.sequence, s.first, s.count});
    manifest["steps"].push_back(
        {{"phase", name(step.step.phase)}, {"step", step.step.index}, {"tokens", tokens}});
    for (const TapValue& value : step.values) taps[value.name] = placement_json(program, value);
  }
  manifest["ranks"] = Json::array();
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    Json coordinates;
    const std::vector<int> at = mesh.coordinates(rank);
    for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
      coordinates[mesh.axes[axis].name] = at[axis];
    const std::string file = fmt::format("rank{}.safetensors", rank);
    manifest["ranks"].push_back({{"coord", coordinates}, {"file", file}});
    std::vector<std::pair<std::string, HostTensor>> tensors;
    for (const StepTaps& step : run.steps) {
      for (const TapValue& value : step.values) {
        const HostTensor& tensor = value.ranks[static_cast<std::size_t>(rank)];
        if (!tensor.shape().empty())
          tensors.emplace_back(step_prefix(step.step) + value.name, tensor);
      }
    }
    write_safetensors(folder / file, tensors);
  }
  std::map<std::string, Json> patterns;
  std::map<std::string, bool> uniform;
  for (const auto& [tap, placement] : taps) {
    const auto [entry, fresh] = patterns.emplace(layer_pattern(tap), placement);
    if (fresh) uniform[entry->first] = true;
    if (entry->second != placement) uniform[entry->first] = false;
  }
  for (const auto& [tap, placement] : taps) {
    const std::string pattern = layer_pattern(tap);
    manifest["taps"][uniform[pattern] ? pattern : tap] = placement;
  }
  const std::filesystem::path target = folder / "manifest.json",
                              partial = folder / "manifest.json.part";
  {
    std::ofstream out(partial);
    out << text(manifest);
    if (!out.flush()) throw InputError(fmt::format("{}: can't be written", partial.string()));
  }
  std::filesystem::rename(partial, target);
}

}  // namespace shardcheck
