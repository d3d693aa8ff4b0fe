// SPDX-License-Identifier: Apache-2.0
#include "harness/import/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "harness/import/assemble.hpp"
#include "harness/import/repair.hpp"
#include "harness/import/sources.hpp"
#include "model/error.hpp"
#include "model/json_text.hpp"

namespace shardcheck {
namespace {

struct SourceKind {
  ImportSource source;
  const char* name;
  bool needs_model;
  const char* row_parallel;
  const char* row_parallel_of_whole;
  ImportedRules (*read)(const ImportedFile& file);
};

constexpr SourceKind kSources[] = {
    {ImportSource::hf, "hf", false, "rowwise", "rowwise_split_input", read_hugging_face},
    {ImportSource::dtensor, "dtensor", false, "RowwiseParallel()",
     "RowwiseParallel(input_layouts=Replicate())", read_dtensor},
    {ImportSource::deepspeed, "deepspeed", true, "row", "", read_deepspeed},
    {ImportSource::vllm, "vllm", true, "RowParallelLinear",
     "RowParallelLinear(input_is_parallel=False)", read_vllm}};

const SourceKind& kind_of(ImportSource source) {
  return *std::find_if(std::begin(kSources), std::end(kSources),
                       [source](const SourceKind& kind) { return kind.source == source; });
}

}  // namespace

const nlohmann::json& ImportedFile::object(const JsonPath& path) const {
  const nlohmann::json* at = &json;
  for (const std::string& key : path)
    at = at->is_array() ? &at->at(static_cast<std::size_t>(std::stoul(key))) : &at->at(key);
  if (!at->is_object()) {
    places.fail_at(places.value(path),
                   fmt::format("{} is no object of \"name\": value pairs", quoted(*at)));
  }
  return *at;
}

ImportSource parse_import_source(const std::string& word) {
  std::vector<std::string> names;
  for (const SourceKind& kind : kSources) {
    if (kind.name == word) return kind.source;
    names.emplace_back(kind.name);
  }
  throw InputError(
      fmt::format("--from: unknown source \"{}\"; use {}", word, fmt::join(names, ", ")));
}

std::string_view name(ImportSource source) { return kind_of(source).name; }
std::string_view row_parallel(ImportSource source) { return kind_of(source).row_parallel; }
std::string_view row_parallel_of_whole(ImportSource source) {
  return kind_of(source).row_parallel_of_whole;
}
bool needs_model(ImportSource source) { return kind_of(source).needs_model; }

ImportedPlan import_plan(std::string_view text, const std::string& origin,
                         const ImportOptions& options) {
  if (needs_model(options.source) && options.model == nullptr) {
    throw InputError(fmt::format(
        "{}: a plan of {} names modules in a way that depends on the model; pass --model", origin,
        name(options.source)));
  }
  const nlohmann::json json = parse_json(text, origin, true);
  const JsonPlaces places(text, origin);
  if (!options.select.empty() && (options.source != ImportSource::hf || !json.contains("plans")))
    throw InputError(fmt::format("{}: holds one plan; leave out --select {}", origin, options.select));
  const ImportedFile file{json, places, options.select,
                          options.model == nullptr ? "" : options.model->config().model_type};
  ImportedRules imported = kind_of(options.source).read(file);
  // As the file has them, whatever the JSON library makes of the order.
  std::stable_sort(imported.rules.begin(), imported.rules.end(),
                   [](const ImportedRule& a, const ImportedRule& b) { return a.place < b.place; });
  const ModuleTable modules = options.model == nullptr ? ModuleTable::of_all_families()
                                                       : ModuleTable::of(*options.model);
  ImportedPlan result = assemble(imported, modules, places, options);
  result.plan.name = !options.name.empty()     ? options.name
                     : !options.select.empty() ? options.select
                                               : std::filesystem::path(origin).stem().string();
  result.plan.origin = origin;
  if (options.repair) {
    for (const std::string& change : repair(result.plan.families.at(""), modules, options))
      result.notes.push_back("repaired: " + change);
  }
  return result;
}

}  // namespace shardcheck
