// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/candidate.hpp"
#include "harness/candidate_names.hpp"
#include "model/error.hpp"
#include "model/safetensors.hpp"
#include "model/shipped.hpp"
#include "reference/transformer.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"

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
    candidate_.folder = folder_.string();
    read_header();
    read_steps();
    learn_features();
    read_ranks();
    candidate_.program = candidate_program(model_, ops_, mesh_, layouts_, table_rows_);
    order_taps();
    return std::move(candidate_);
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

  void read_header() {
    if (manifest_["schema"] != "shardcheck.taps/1") {
      fail(fmt::format("schema {} is not \"shardcheck.taps/1\"", manifest_["schema"].dump()));
    }
    if (!manifest_["mesh"].is_object() || manifest_["mesh"].empty())
      fail("\"mesh\" must be an object such as {\"tp\": 4}");
    for (const auto& [axis, size] : manifest_["mesh"].items()) {
      mesh_.axes.push_back({axis, static_cast<int>(integer(size, "mesh." + axis, 1, 1024))});
    }
    if (mesh_.ranks() > 4096) fail("the mesh has more than 4096 ranks");
    TapRun& run = candidate_.run;
    run.mesh = mesh_;
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
      candidate_.sequences.push_back(std::move(sequence));
    }
  }

  void read_steps() {
    if (!manifest_["steps"].is_array() || manifest_["steps"].empty())
      fail("\"steps\" must be a list, not empty");
    std::vector<std::int64_t> done(candidate_.sequences.size(), 0);
    std::set<std::string> seen;
    for (const Json& json : manifest_["steps"]) {
      if (!json.is_object() || !json.contains("phase") || !json.contains("step") ||
          !json.contains("tokens")) {
        fail("every step needs phase, step and tokens [[sequence, first, count], ...]");
      }
      Step step;
      if (json["phase"] != "prefill" && json["phase"] != "decode") {
        fail(fmt::format("unknown phase {}; use prefill or decode", json["phase"].dump()));
      }
      step.phase = json["phase"] == "prefill" ? Phase::prefill : Phase::decode;
      step.index = static_cast<int>(integer(json["step"], "step", 0, 1000000));
      if (!seen.insert(step_prefix(step)).second)
        fail(fmt::format("{}stands twice", step_prefix(step)));
      if (!json["tokens"].is_array()) fail("tokens must list [sequence, first, count]");
      for (const Json& part : json["tokens"]) {
        if (!part.is_array() || part.size() != 3) fail("tokens must list [sequence, first, count]");
        const auto sequence = static_cast<std::size_t>(
            integer(part[0], "a sequence", 0, static_cast<std::int64_t>(done.size()) - 1));
        const auto length = static_cast<std::int64_t>(candidate_.sequences[sequence].size());
        const std::int64_t first = integer(part[1], "first", 0, length);
        const std::int64_t count = integer(part[2], "count", 0, length - first);
        if (first != done[sequence]) {
          fail(fmt::format("{}: sequence {} goes on at {}, but {} tokens came before",
                           step_prefix(step), sequence, first, done[sequence]));
        }
        done[sequence] += count;
        step.sequences.push_back({static_cast<std::int64_t>(sequence), first, count});
        const auto begin = candidate_.sequences[sequence].begin() + first;
        step.ids.insert(step.ids.end(), begin, begin + count);
      }
      candidate_.run.steps.push_back({step, {}, {}});
    }
  }

  /// Whole features of every name that may occur: the program's values on one rank, and the reference's containers.
  void learn_features() {
    const Program whole = candidate_program(model_, ops_, Mesh{{{"tp", 1}}}, {});
    for (const Value& value : whole.values) features_[value.name] = value.layout.features;
    for (const char* source : {"ids", "positions"}) features_.erase(source);
    inputs_ = module_inputs(model_.config());
    for (const auto& [module, input] : inputs_) {
      features_[module + ".partial"] = features_[module + ".reduced"] = features_.at(module);
      const auto features = features_.find(input);
      if (features != features_.end()) features_[module + ".in"] = features->second;
    }
    const Config& config = model_.config();
    for (const std::string& tap : reference::tap_names(config)) {
      const bool inside_mlp = tap.size() > 7 && tap.compare(tap.size() - 7, 7, ".act_fn") == 0;
      features_.emplace(tap, inside_mlp ? config.intermediate_size : config.hidden_size);
    }
  }

  /// Whole features of a tap; nothing if the model has no such tap.
  std::optional<std::int64_t> features_of(const std::string& tap) const {
    auto found = features_.find(tap);
    // Numbered stages have the features of the value that is on its way.
    if (found == features_.end() && model_has_stage(tap))
      found = features_.find(value_behind(tap, inputs_));
    return found == features_.end() ? std::nullopt : std::optional(found->second);
  }
  bool model_has_stage(const std::string& tap) const {
    const Stage stage = stage_of(tap);
    return stage.kind != Stage::Kind::none && inputs_.find(stage.module) != inputs_.end();
  }

  void read_ranks() {
    if (!manifest_["ranks"].is_array() ||
        manifest_["ranks"].size() != static_cast<std::size_t>(mesh_.ranks())) {
      fail(fmt::format("\"ranks\" must list {} ranks, one for each place of the mesh {}",
                       mesh_.ranks(), to_string(mesh_)));
    }
    std::vector<bool> seen(static_cast<std::size_t>(mesh_.ranks()), false);
    for (const Json& json : manifest_["ranks"]) {
      if (!json.is_object() || !json.contains("coord") || !json["coord"].is_object() ||
          !json.contains("file") || !json["file"].is_string()) {
        fail("every rank needs coord {\"tp\": 0} and file");
      }
      std::vector<int> at;
      for (const Mesh::Axis& axis : mesh_.axes) {
        if (!json["coord"].contains(axis.name))
          fail(fmt::format("a rank's coord lacks the axis {}", axis.name));
        at.push_back(static_cast<int>(
            integer(json["coord"][axis.name], "coord." + axis.name, 0, axis.size - 1)));
      }
      const int rank = mesh_.rank_at(at);
      if (seen[static_cast<std::size_t>(rank)]) fail(fmt::format("rank {} stands twice", rank));
      seen[static_cast<std::size_t>(rank)] = true;
      read_rank(rank, folder_ / json["file"].get<std::string>());
    }
  }

  void read_rank(int rank, const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) {
      throw InputError(
          fmt::format("{}: the file of rank {} is missing; every rank of the mesh {} needs one",
                      path.string(), rank, to_string(mesh_)));
    }
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const std::string& full : file.names()) {
      const auto slash = full.find('/');
      const std::string prefix = slash == std::string::npos ? "" : full.substr(0, slash + 1);
      const auto step = std::find_if(
          candidate_.run.steps.begin(), candidate_.run.steps.end(),
          [&](const StepTaps& taps) { return step_prefix(taps.step) == prefix; });
      if (step == candidate_.run.steps.end()) {
        throw InputError(fmt::format(
            "{}: tensor \"{}\" belongs to no step of the manifest; names are <step>/<tap>, such as "
            "prefill/{}",
            path.string(), full, model_.modules().front().path));
      }
      const std::string tap(strip_prefix(full.substr(slash + 1)));
      if (!features_of(tap)) {
        if (options_.allow_unknown) {
          ++candidate_.unknown;
          continue;
        }
        std::vector<std::string> names;
        for (const auto& [name, features] : features_) names.push_back(name);
        throw InputError(fmt::format(
            "{}: {} has no tap \"{}\"; did you mean \"{}\"? (--allow-unknown counts such tensors "
            "instead)",
            path.string(), model_.config().name, tap, nearest_name(tap, names)));
      }
      const Layout& layout = layout_of(tap);
      HostTensor tensor = file.tensor(full);
      const DType wanted = layout.any_partial() ? candidate_.run.wire : candidate_.run.storage;
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
      if (!store(*step, tap, layout, rank, std::move(tensor))) {
        throw InputError(fmt::format(
            "{}: {}{} stands under two names, with and without the base model's prefix; keep one",
            path.string(), prefix, tap));
      }
    }
  }

  /// False if the rank has this tap of this step already.
  bool store(StepTaps& step, const std::string& tap, const Layout& layout, int rank, HostTensor tensor) {
    if (step.find(tap) == nullptr)
      step.add({tap, layout, std::vector<HostTensor>(static_cast<std::size_t>(mesh_.ranks()))});
    TapValue& value = step.values[step.index.at(tap)];
    HostTensor& slot = value.ranks[static_cast<std::size_t>(rank)];
    if (!slot.shape().empty()) return false;
    for (const HostTensor& other : value.ranks) {
      if (!other.shape().empty() && other.bitwise_equal(tensor)) {
        tensor = other;  // replicas are kept once
        break;
      }
    }
    slot = std::move(tensor);
    return true;
  }

  const Layout& layout_of(const std::string& tap) {
    const auto known = layouts_.find(tap);
    if (known != layouts_.end()) return known->second;
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
          tap, tap, mesh_.axes[0].name));
    }
    return layouts_[tap] = parse_layout(tap, pattern, *placement);
  }

  Layout parse_layout(const std::string& tap, const std::string& pattern, const Json& json) {
    if (!json.is_object())
      fail(fmt::format("taps.{} must be an object such as {{\"tp\": \"S(features)\"}}", pattern));
    const Config& config = model_.config();
    Layout layout = Layout::replicated(*features_of(tap), mesh_);
    bool cut = false;
    for (const auto& [key, value] : json.items()) {
      if (key == "ranges") continue;
      const int axis = mesh_.axis_index(key);
      if (axis < 0) fail(fmt::format("taps.{}: the mesh has no axis \"{}\"", pattern, key));
      const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
      Placement& placement = layout.placements[static_cast<std::size_t>(axis)];
      if (word == "R") continue;
      if (word == "P(sum)") {
        placement = Placement::partial();
      } else if (word == "P(max)") {
        placement = {Placement::Kind::P_max, Dim::features};
      } else if (word == "S(tokens)" || word == "S(sequence)") {
        placement = Placement::sharded(Dim::tokens);
        layout.token_axes.push_back(axis);
      } else if (word == "S(features)" || word == "S(vocab)" || word == "S(head)" ||
                 word == "S(kv_head)") {
        cut = true;
        if (word == "S(kv_head)") {
          cut_kv_heads(layout, axis);
        } else {
          layout = split_features(std::move(layout), mesh_, {axis},
                                  word == "S(head)" ? config.head_dim : 1);
        }
      } else {
        fail(
            fmt::format("taps.{}: unknown placement \"{}\"; use R, S(features), S(head), "
                        "S(kv_head), S(vocab), S(tokens), "
                        "P(sum) or P(max)",
                        pattern, word));
      }
    }
    if (json.contains("ranges") && layout.any_partial() && !cut && is_table(stage_of(tap).module)) {
      const Module& table = model_.module(stage_of(tap).module);
      std::vector<Ranges> rows = parse_ranges(pattern, json["ranges"], table.out);
      Ranges all;
      for (const Ranges& mine : rows) all.insert(all.end(), mine.begin(), mine.end());
      check_whole(pattern, normalized(all), table.out);
      table_rows_[table.path] = std::move(rows);
    } else if (json.contains("ranges")) {
      if (!cut) {
        fail(
            fmt::format("taps.{}: \"ranges\" needs a placement S(features) or the like, or an "
                        "embedding's P(sum)",
                        pattern));
      }
      layout.owned = parse_ranges(pattern, json["ranges"], layout.features);
    }
    check_cover(pattern, layout);
    return layout;
  }

  std::vector<Ranges> parse_ranges(const std::string& pattern, const Json& json,
                                   std::int64_t extent) const {
    const std::string rule = fmt::format(
        "taps.{}: \"ranges\" must list, for each of the {} ranks, half-open [begin, end) "
        "pairs within [0, {})",
        pattern, mesh_.ranks(), extent);
    if (!json.is_array() || json.size() != static_cast<std::size_t>(mesh_.ranks())) fail(rule);
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

  /// kv heads by need: those of the rank's balanced q heads.
  void cut_kv_heads(Layout& layout, int axis) const {
    const Config& config = model_.config();
    const std::int64_t group = config.num_heads / config.num_kv_heads, d = config.head_dim;
    const Partition q = Partition::balanced(config.num_heads,
                                            mesh_.axes[static_cast<std::size_t>(axis)].size);
    layout.placements[static_cast<std::size_t>(axis)] = Placement::sharded(Dim::features);
    layout.may_overlap = true;
    layout.owned.clear();
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      Ranges heads;
      for (const Range& range : q.of(mesh_.coordinates(rank)[static_cast<std::size_t>(axis)])) {
        heads.push_back({range.begin / group * d, ((range.end - 1) / group + 1) * d});
      }
      layout.owned.push_back(normalized(std::move(heads)));
    }
  }

  bool is_table(const std::string& module) const {
    return inputs_.find(module) != inputs_.end() && model_.module(module).kind == ModuleKind::embedding;
  }

  void check_whole(const std::string& pattern, const Ranges& joined, std::int64_t extent) const {
    if (joined.size() == 1 && joined[0] == Range{0, extent}) return;
    fail(fmt::format("taps.{}: the ranges cover {} of [0,{}); every element needs an owner",
                     pattern, to_string(joined), extent));
  }

  void check_cover(const std::string& pattern, Layout& layout) const {
    if (layout.owned.empty()) return;
    Ranges all;
    std::int64_t held = 0;
    for (const int rank : unique_shards(layout)) {
      for (const Range& range : layout.owned[static_cast<std::size_t>(rank)]) {
        all.push_back(range);
        held += range.size();
      }
    }
    check_whole(pattern, normalized(all), layout.features);
    layout.may_overlap = layout.may_overlap || held > layout.features;
  }

  /// One rank for every distinct coordinate on the axes that cut features.
  std::vector<int> unique_shards(const Layout& layout) const {
    std::set<std::vector<int>> seen;
    std::vector<int> ranks;
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      std::vector<int> at;
      for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
        if (layout.placements[axis] == Placement::sharded(Dim::features)) {
          at.push_back(mesh_.coordinates(rank)[axis]);
        }
      }
      if (seen.insert(at).second) ranks.push_back(rank);
    }
    return ranks;
  }

  /// Taps of a step in program order; containers, which the program doesn't have, last.
  void order_taps() {
    std::map<std::string, int> order;
    int next = 0;
    for (const Instruction& instruction : candidate_.program.instructions.at(Phase::prefill)) {
      for (const int output : instruction.outputs)
        order.emplace(candidate_.program.value(output).name, next++);
    }
    for (StepTaps& step : candidate_.run.steps) {
      std::stable_sort(step.values.begin(), step.values.end(),
                       [&](const TapValue& a, const TapValue& b) {
                         const auto place = [&](const TapValue& v) {
                           return order.count(v.name) != 0 ? order.at(v.name) : next;
                         };
                         return place(a) < place(b);
                       });
      step.index.clear();
      for (std::size_t i = 0; i < step.values.size(); ++i) step.index[step.values[i].name] = i;
    }
  }

  const Model& model_;
  const Registry& ops_;
  std::filesystem::path folder_;
  CandidateOptions options_;
  Json manifest_;
  Mesh mesh_;
  std::map<std::string, std::int64_t, std::less<>> features_;
  std::map<std::string, std::string, std::less<>> inputs_;  // of modules
  std::map<std::string, Layout, std::less<>> layouts_;
  TableRows table_rows_;
  Candidate candidate_;
};

}  // namespace

Candidate read_candidate(const Model& model, const Registry& ops,
                         const std::filesystem::path& folder, const CandidateOptions& options) {
  return Reader(model, ops, folder, options).read();
}

}  // namespace shardcheck
