// SPDX-License-Identifier: Apache-2.0
#include "harness/candidate_build.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/candidate_names.hpp"
#include "model/error.hpp"
#include "reference/transformer.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

bool is_partial_word(const std::string& word) { return word == "P(sum)" || word == "P(max)"; }
bool is_feature_cut(const std::string& word) {
  return word == "S(features)" || word == "S(vocab)" || word == "S(head)" || word == "S(kv_head)";
}

}  // namespace

/// Whole features of every name that may occur: the program's values on one rank, and the reference's containers.
CandidateBuilder::CandidateBuilder(const Model& model, const Registry& ops, Mesh mesh, std::string origin)
    : model_(model), ops_(ops), mesh_(std::move(mesh)), origin_(std::move(origin)) {
  candidate_.run.mesh = mesh_;
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
  for (const Node& node : build_graph(config).nodes) {
    if (node.op != "rms_norm") continue;
    for (const char* stage : {".stat", ".stat.partial", ".stat.reduced"}) features_[node.module + stage] = 1;
  }
  for (const std::string& tap : reference::tap_names(config)) {
    const bool inside_mlp = tap.size() > 7 && tap.compare(tap.size() - 7, 7, ".act_fn") == 0;
    features_.emplace(tap, inside_mlp ? config.intermediate_size : config.hidden_size);
  }
}

void CandidateBuilder::fail(const std::string& message) const {
  throw InputError(fmt::format("{}: {}", origin_, message));
}

void CandidateBuilder::add_step(Phase phase, int index, const std::vector<StepSequence>& parts) {
  Step step;
  step.phase = phase;
  step.index = index;
  step.sequences = parts;
  for (const StepTaps& other : candidate_.run.steps) {
    if (step_prefix(other.step) == step_prefix(step))
      fail(fmt::format("{} stands twice", step_prefix(step)));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StepSequence& part = parts[i];
    std::int64_t done = 0;  // tokens of this sequence before
    const auto count_in = [&](const StepSequence& other) {
      if (other.sequence == part.sequence) done += other.count;
    };
    for (const StepTaps& other : candidate_.run.steps)
      std::for_each(other.step.sequences.begin(), other.step.sequences.end(), count_in);
    std::for_each(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i), count_in);
    if (part.first != done) {
      fail(fmt::format("{}: sequence {} goes on at {}, but {} tokens came before",
                       step_prefix(step), part.sequence, part.first, done));
    }
    const std::vector<std::int64_t>& ids = candidate_.sequences.at(
        static_cast<std::size_t>(part.sequence));
    step.ids.insert(step.ids.end(), ids.begin() + part.first, ids.begin() + part.first + part.count);
  }
  candidate_.run.steps.push_back({std::move(step), {}, {}});
}

std::optional<std::int64_t> CandidateBuilder::features_of(const std::string& tap) const {
  auto found = features_.find(tap);
  // Numbered stages have the features of the value that is on its way.
  const Stage stage = stage_of(tap);
  if (found == features_.end() && stage.kind != Stage::Kind::none &&
      (inputs_.find(stage.module) != inputs_.end() || stage.module.ends_with(".stat"))) {
    found = features_.find(value_behind(tap, inputs_));
  }
  return found == features_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> CandidateBuilder::known_taps() const {
  std::vector<std::string> names;
  for (const auto& [name, features] : features_) names.push_back(name);
  return names;
}

bool CandidateBuilder::is_table(const std::string& module) const {
  return inputs_.find(module) != inputs_.end() && model_.module(module).kind == ModuleKind::embedding;
}

std::int64_t CandidateBuilder::extent_of_ranges(const std::string& tap,
                                                const PlacementWords& words) const {
  const auto any = [&](auto test) {
    return std::any_of(words.axes.begin(), words.axes.end(),
                       [&](const auto& axis) { return test(axis.second); });
  };
  if (any(is_feature_cut)) return features_of(tap).value();
  if (!any(is_partial_word) || !is_table(stage_of(tap).module)) {
    fail(fmt::format(
        "{}: \"ranges\" needs a placement S(features) or the like, or an embedding's P(sum)",
        words.where));
  }
  return extent_of_rows(tap, words);
}

std::int64_t CandidateBuilder::extent_of_rows(const std::string& tap, const PlacementWords& words) const {
  const std::string module = stage_of(tap).module;
  const bool partial = std::any_of(words.axes.begin(), words.axes.end(),
                                   [](const auto& axis) { return is_partial_word(axis.second); });
  if (!partial || !is_table(module))
    fail(fmt::format("{}: \"rows\" needs an embedding's P(sum)", words.where));
  return model_.module(module).out;
}

void CandidateBuilder::place(const std::string& tap, const PlacementWords& words) {
  Layout layout = Layout::replicated(features_of(tap).value(), mesh_);
  bool cut = false;
  for (const auto& [name, word] : words.axes) {
    const int axis = mesh_.axis_index(name);
    if (axis < 0) fail(fmt::format("{}: the mesh has no axis \"{}\"", words.where, name));
    Placement& placement = layout.placements[static_cast<std::size_t>(axis)];
    if (word == "R") continue;
    if (word == "P(sum)") {
      placement = Placement::partial();
    } else if (word == "P(max)") {
      placement = {Placement::Kind::P_max, Dim::features};
    } else if (word == "S(tokens)" || word == "S(sequence)") {
      placement = Placement::sharded(word == "S(tokens)" ? Dim::tokens : Dim::sequences);
      layout.row_axes.push_back(axis);
    } else if (word == "S(kv_head)") {
      cut = true;
      cut_kv_heads(layout, axis);
    } else if (is_feature_cut(word)) {
      cut = true;
      layout = split_features(std::move(layout), mesh_, {axis},
                              word == "S(head)" ? model_.config().head_dim : 1);
    } else {
      fail(
          fmt::format("{}: unknown placement \"{}\"; use R, S(features), S(head), S(kv_head), "
                      "S(vocab), S(tokens), S(sequence), P(sum) or P(max)",
                      words.where, word));
    }
  }
  if (words.ranges) {
    const std::int64_t extent = extent_of_ranges(tap, words);
    if (cut) {
      layout.owned = *words.ranges;
    } else {
      place_rows(tap, words.where, *words.ranges, extent);
    }
  }
  if (words.rows) place_rows(tap, words.where, *words.rows, extent_of_rows(tap, words));
  check_cover(words.where, layout);
  layouts_[tap] = std::move(layout);
}

void CandidateBuilder::place_rows(const std::string& tap, const std::string& where,
                                  const std::vector<Ranges>& rows, std::int64_t extent) {
  Ranges all;
  for (const Ranges& mine : rows) all.insert(all.end(), mine.begin(), mine.end());
  check_whole(where, normalized(all), extent);
  table_rows_[stage_of(tap).module] = rows;
}

bool CandidateBuilder::store(StepTaps& step, const std::string& tap, int rank, HostTensor tensor) {
  if (step.find(tap) == nullptr) {
    step.add({tap, layouts_.at(tap), std::vector<HostTensor>(static_cast<std::size_t>(mesh_.ranks()))});
  }
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

Candidate CandidateBuilder::candidate() const {
  Candidate candidate = candidate_;
  candidate.program = candidate_program(model_, ops_, mesh_, layouts_, table_rows_);
  order_taps(candidate);
  return candidate;
}

/// kv heads by need: those of the rank's balanced q heads.
void CandidateBuilder::cut_kv_heads(Layout& layout, int axis) const {
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

void CandidateBuilder::check_whole(const std::string& where, const Ranges& joined,
                                   std::int64_t extent) const {
  if (joined.size() == 1 && joined[0] == Range{0, extent}) return;
  fail(fmt::format("{}: the ranges cover {} of [0,{}); every element needs an owner", where,
                   to_string(joined), extent));
}

void CandidateBuilder::check_cover(const std::string& where, Layout& layout) const {
  if (layout.owned.empty()) return;
  Ranges all;
  std::int64_t held = 0;
  for (const int rank : unique_shards(layout)) {
    for (const Range& range : layout.owned[static_cast<std::size_t>(rank)]) {
      all.push_back(range);
      held += range.size();
    }
  }
  check_whole(where, normalized(all), layout.features);
  layout.may_overlap = layout.may_overlap || held > layout.features;
}

/// One rank for every distinct coordinate on the axes that cut features.
std::vector<int> CandidateBuilder::unique_shards(const Layout& layout) const {
  std::set<std::vector<int>> seen;
  std::vector<int> ranks;
  for (int rank = 0; rank < mesh_.ranks(); ++rank) {
    std::vector<int> at;
    for (std::size_t axis = 0; axis < mesh_.axes.size(); ++axis) {
      if (layout.placements[axis] == Placement::sharded(Dim::features))
        at.push_back(mesh_.coordinates(rank)[axis]);
    }
    if (seen.insert(at).second) ranks.push_back(rank);
  }
  return ranks;
}

/// Taps of a step in program order; containers, which the program doesn't have, last.
void CandidateBuilder::order_taps(Candidate& candidate) const {
  std::map<std::string, int> order;
  int next = 0;
  for (const Instruction& instruction : candidate.program.instructions.at(Phase::prefill)) {
    for (const int output : instruction.outputs)
      order.emplace(candidate.program.value(output).name, next++);
  }
  for (StepTaps& step : candidate.run.steps) {
    const auto place = [&](const TapValue& value) {
      const auto found = order.find(value.name);
      return found == order.end() ? next : found->second;
    };
    std::stable_sort(step.values.begin(), step.values.end(),
                     [&](const TapValue& a, const TapValue& b) { return place(a) < place(b); });
    step.index.clear();
    for (std::size_t i = 0; i < step.values.size(); ++i) step.index[step.values[i].name] = i;
  }
}

}  // namespace shardcheck
