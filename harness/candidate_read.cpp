// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/candidate_build.hpp"
#include "harness/candidate_names.hpp"
#include "model/error.hpp"
#include "model/safetensors.hpp"
#include "model/shipped.hpp"

namespace shardcheck {
namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  Reader(const Model& model, const Registry& ops, const std::filesystem::path& folder,
         const CandidateOptions& options)
      : model_(model), ops_(ops), folder_(folder), options_(options) {}

  Candidate read() {
    manifest_ = parse();
    builder_.emplace(model_, ops_, read_mesh(), (folder_ / "manifest.json").string());
    read_header();
    read_steps();
    read_ranks();
    Candidate candidate = builder_->candidate();
    candidate.folder = folder_.string();
    candidate.unknown = unknown_;
    return candidate;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw InputError(fmt::format("{}: {}", (folder_ / "manifest.json").string(), message));
  }

  Json parse() const {
    const std::filesystem::path file = folder_ / "manifest.json";
    if (!std::filesystem::exists(file)) {
      throw InputError(fmt::format(
          "{}: no manifest.json here; a candidate is a folder with manifest.json and one "
          "safetensors file per rank",
          folder_.string()));
    }
    try {
      Json json = Json::parse(read_text(file));
      if (!json.is_object()) fail("must hold an object");
      static const std::set<std::string> kKnown{"schema", "mesh",  "dtype", "wire", "reduction",
                                                "ids",    "steps", "ranks", "taps"};
      for (const auto& item : json.items()) {
        if (kKnown.count(item.key()) == 0) {
          fail(fmt::format("unknown key \"{}\"; did you mean \"{}\"?", item.key(),
                           nearest_name(item.key(), {kKnown.begin(), kKnown.end()})));
        }
      }
      for (const char* key : {"schema", "mesh", "dtype", "ids", "steps", "ranks", "taps"}) {
        if (!json.contains(key)) fail(fmt::format("needs \"{}\"", key));
      }
      return json;
    } catch (const Json::parse_error& error) {
      fail(fmt::format("not valid JSON: {}", error.what()));
    }
  }

  std::int64_t integer(const Json& json, const std::string& where, std::int64_t low,
                       std::int64_t high) const {
    if (!json.is_number_integer() || json.get<std::int64_t>() < low || json.get<std::int64_t>() > high) {
      fail(fmt::format("{} must be an integer from {} to {}, not {}", where, low, high, json.dump()));
    }
    return json.get<std::int64_t>();
  }

  DType dtype(const Json& json, const std::string& key) const {
    const std::optional<DType> parsed = json.is_string() ? parse_float_dtype(json.get<std::string>())
                                                         : std::nullopt;
    if (!parsed)
      fail(fmt::format("\"{}\" must be f64, f32, bf16 or fp16, not {}", key, json.dump()));
    return *parsed;
  }

  Mesh read_mesh() const {
    if (manifest_["schema"] != "shardcheck.taps/1") {
      fail(fmt::format("schema {} is not \"shardcheck.taps/1\"", manifest_["schema"].dump()));
    }
    if (!manifest_["mesh"].is_object() || manifest_["mesh"].empty())
      fail("\"mesh\" must be an object such as {\"tp\": 4}");
    Mesh mesh;
    for (const auto& [axis, size] : manifest_["mesh"].items()) {
      mesh.axes.push_back({axis, static_cast<int>(integer(size, "mesh." + axis, 1, 1024))});
    }
    if (mesh.ranks() > 4096) fail("the mesh has more than 4096 ranks");
    return mesh;
  }

  void read_header() {
    TapRun& run = builder_->run();
    run.storage = dtype(manifest_["dtype"], "dtype");
    run.wire = manifest_.contains("wire") ? dtype(manifest_["wire"], "wire") : run.storage;
    if (manifest_.contains("reduction")) {
      const Json& reduction = manifest_["reduction"];
      if (!reduction.is_object()) fail("\"reduction\" must be an object with order and hop");
      const auto word = [&](const char* key, std::string_view otherwise) {
        if (reduction.contains(key) && !reduction[key].is_string())
          fail(fmt::format("reduction.{} must be a word", key));
        return reduction.contains(key) ? reduction[key].get<std::string>() : std::string(otherwise);
      };
      const auto order = parse_reduce_order(word("order", "ring"));
      const auto hop = parse_hop_rounding(word("hop", "wire"));
      if (!order || !hop) fail("\"reduction\": unknown order or hop");
      run.reduction.order = *order;
      run.reduction.hop = *hop;
    }
    if (!manifest_["ids"].is_array() || manifest_["ids"].empty())
      fail("\"ids\" must list one list of ids per sequence");
    for (const Json& ids : manifest_["ids"]) {
      if (!ids.is_array()) fail("\"ids\" must list one list of ids per sequence");
      std::vector<std::int64_t> sequence;
      for (const Json& id : ids)
        sequence.push_back(integer(id, "an id", 0, model_.config().vocab_size - 1));
      builder_->sequences().push_back(std::move(sequence));
    }
  }

  void read_steps() {
    if (!manifest_["steps"].is_array() || manifest_["steps"].empty())
      fail("\"steps\" must be a list, not empty");
    for (const Json& json : manifest_["steps"]) {
      if (!json.is_object() || !json.contains("phase") || !json.contains("step") ||
          !json.contains("tokens")) {
        fail("every step needs phase, step and tokens [[sequence, first, count], ...]");
      }
      if (json["phase"] != "prefill" && json["phase"] != "decode") {
        fail(fmt::format("unknown phase {}; use prefill or decode", json["phase"].dump()));
      }
      if (!json["tokens"].is_array()) fail("tokens must list [sequence, first, count]");
      std::vector<StepSequence> parts;
      for (const Json& part : json["tokens"]) {
        if (!part.is_array() || part.size() != 3) fail("tokens must list [sequence, first, count]");
        const auto count = static_cast<std::int64_t>(builder_->sequences().size());
        const std::int64_t sequence = integer(part[0], "a sequence", 0, count - 1);
        const auto length = static_cast<std::int64_t>(
            builder_->sequences()[static_cast<std::size_t>(sequence)].size());
        const std::int64_t first = integer(part[1], "first", 0, length);
        parts.push_back({sequence, first, integer(part[2], "count", 0, length - first)});
      }
      builder_->add_step(json["phase"] == "prefill" ? Phase::prefill : Phase::decode,
                         static_cast<int>(integer(json["step"], "step", 0, 1000000)), parts);
    }
  }

  void read_ranks() {
    if (!manifest_["ranks"].is_array() ||
        manifest_["ranks"].size() != static_cast<std::size_t>(builder_->mesh().ranks())) {
      fail(fmt::format("\"ranks\" must list {} ranks, one for each place of the mesh {}",
                       builder_->mesh().ranks(), to_string(builder_->mesh())));
    }
    std::vector<bool> seen(static_cast<std::size_t>(builder_->mesh().ranks()), false);
    for (const Json& json : manifest_["ranks"]) {
      if (!json.is_object() || !json.contains("coord") || !json["coord"].is_object() ||
          !json.contains("file") || !json["file"].is_string()) {
        fail("every rank needs coord {\"tp\": 0} and file");
      }
      std::vector<int> at;
      for (const Mesh::Axis& axis : builder_->mesh().axes) {
        if (!json["coord"].contains(axis.name))
          fail(fmt::format("a rank's coord lacks the axis {}", axis.name));
        at.push_back(static_cast<int>(
            integer(json["coord"][axis.name], "coord." + axis.name, 0, axis.size - 1)));
      }
      const int rank = builder_->mesh().rank_at(at);
      if (seen[static_cast<std::size_t>(rank)]) fail(fmt::format("rank {} stands twice", rank));
      seen[static_cast<std::size_t>(rank)] = true;
      read_rank(rank, folder_ / json["file"].get<std::string>());
    }
  }

  void read_rank(int rank, const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) {
      throw InputError(
          fmt::format("{}: the file of rank {} is missing; every rank of the mesh {} needs one",
                      path.string(), rank, to_string(builder_->mesh())));
    }
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const std::string& full : file.names()) {
      const auto slash = full.find('/');
      const std::string prefix = slash == std::string::npos ? "" : full.substr(0, slash + 1);
      const auto step = std::find_if(
          builder_->run().steps.begin(), builder_->run().steps.end(),
          [&](const StepTaps& taps) { return step_prefix(taps.step) == prefix; });
      if (step == builder_->run().steps.end()) {
        throw InputError(fmt::format(
            "{}: tensor \"{}\" belongs to no step of the manifest; names are <step>/<tap>, such as "
            "prefill/{}",
            path.string(), full, model_.modules().front().path));
      }
      const std::string tap(strip_prefix(full.substr(slash + 1)));
      if (!builder_->knows(tap)) {
        if (options_.allow_unknown) {
          ++unknown_;
          continue;
        }
        throw InputError(fmt::format(
            "{}: {} has no tap \"{}\"; did you mean \"{}\"? (--allow-unknown counts such tensors "
            "instead)",
            path.string(), model_.config().name, tap, nearest_name(tap, builder_->known_taps())));
      }
      const Layout& layout = layout_of(tap);
      HostTensor tensor = file.tensor(full);
      const DType wanted = dtype_of(dtype_of_tap(tap, layout), builder_->run().storage, builder_->run().wire);
      if (tensor.dtype() != wanted) {
        throw InputError(fmt::format("{}: tensor \"{}\" is {}, the manifest says {}", path.string(),
                                     full, name(tensor.dtype()), name(wanted)));
      }
      const auto& shape = tensor.shape();
      if (shape.size() == 3 && shape[0] == 1) {
        tensor = tensor.reshaped({shape[1], shape[2]});
      } else if (shape.size() != 2) {
        throw InputError(
            fmt::format("{}: tensor \"{}\" has shape {}; it must be [tokens, features] or [1, "
                        "tokens, features]",
                        path.string(), full, to_string(shape)));
      }
      if (!builder_->store(*step, tap, rank, std::move(tensor))) {
        throw InputError(fmt::format(
            "{}: {}{} stands under two names, with and without the base model's prefix; keep one",
            path.string(), prefix, tap));
      }
    }
  }

  const Layout& layout_of(const std::string& tap) {
    if (builder_->is_placed(tap)) return builder_->layout(tap);
    if (!manifest_["taps"].is_object()) fail("\"taps\" must be an object of patterns");
    const Json* placement = nullptr;
    std::string pattern;
    for (const auto& [key, json] : manifest_["taps"].items()) {
      // An exact name wins over a pattern that also covers it.
      if (!matches(key, tap) || (placement != nullptr && strip_prefix(key) != tap)) continue;
      placement = &json;
      pattern = key;
    }
    if (placement == nullptr) {
      fail(fmt::format(
          "\"taps\" gives no placement for {}; add a pattern such as \"{}\": {{\"{}\": \"R\"}}",
          tap, tap, builder_->mesh().axes[0].name));
    }
    builder_->place(tap, parse_placement(tap, pattern, *placement));
    return builder_->layout(tap);
  }

  PlacementWords parse_placement(const std::string& tap, const std::string& pattern,
                                 const Json& json) const {
    PlacementWords words{"taps." + pattern, {}, std::nullopt};
    if (!json.is_object())
      fail(fmt::format("{} must be an object such as {{\"tp\": \"S(features)\"}}", words.where));
    for (const auto& [key, value] : json.items()) {
      if (key != "ranges" && key != "rows")
        words.axes.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    }
    if (json.contains("ranges"))
      words.ranges = parse_ranges(pattern, "ranges", json["ranges"], builder_->extent_of_ranges(tap, words));
    if (json.contains("rows"))
      words.rows = parse_ranges(pattern, "rows", json["rows"], builder_->extent_of_rows(tap, words));
    return words;
  }

  std::vector<Ranges> parse_ranges(const std::string& pattern, std::string_view key, const Json& json,
                                   std::int64_t extent) const {
    const std::string rule = fmt::format(
        "taps.{}: \"{}\" must list, for each of the {} ranks, half-open [begin, end) "
        "pairs within [0, {})",
        pattern, key, builder_->mesh().ranks(), extent);
    if (!json.is_array() || json.size() != static_cast<std::size_t>(builder_->mesh().ranks())) fail(rule);
    std::vector<Ranges> owned;
    for (const Json& rank : json) {
      if (!rank.is_array()) fail(rule);
      Ranges ranges;
      for (const Json& range : rank) {
        if (!range.is_array() || range.size() != 2) fail(rule);
        const std::int64_t begin = integer(range[0], "a range's begin", 0, extent);
        const std::int64_t end = integer(range[1], "a range's end", begin, extent);
        ranges.push_back({begin, end});
      }
      owned.push_back(std::move(ranges));
    }
    return owned;
  }

  const Model& model_;
  const Registry& ops_;
  std::filesystem::path folder_;
  CandidateOptions options_;
  Json manifest_;
  std::optional<CandidateBuilder> builder_;
  std::int64_t unknown_ = 0;
};

}  // namespace

Candidate read_candidate(const Model& model, const Registry& ops,
                         const std::filesystem::path& folder, const CandidateOptions& options) {
  return Reader(model, ops, folder, options).read();
}

}  // namespace shardcheck
