// SPDX-License-Identifier: Apache-2.0
#include "harness/candidate_names.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sharded/graph.hpp"

namespace shardcheck {

std::string step_prefix(const Step& step) {
  // A prompt in one piece is "prefill/", as in a golden file; further pieces carry their number.
  if (step.phase == Phase::prefill)
    return step.index == 0 ? "prefill/" : fmt::format("prefill{}/", step.index);
  return fmt::format("decode{}/", step.index);
}

Stage stage_of(std::string_view tap) {
  const auto ends = [&](std::string_view suffix) {
    return tap.size() > suffix.size() && tap.substr(tap.size() - suffix.size()) == suffix;
  };
  const auto without = [&](std::string_view suffix) {
    return std::string(tap.substr(0, tap.size() - suffix.size()));
  };
  if (ends(".partial")) return {Stage::Kind::partial, without(".partial")};
  const std::size_t dot = tap.rfind('.');
  const bool numbered = dot != std::string_view::npos && dot + 1 < tap.size() &&
                        std::all_of(tap.begin() + static_cast<std::ptrdiff_t>(dot) + 1, tap.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
  if (numbered) {
    const Stage stage = stage_of(tap.substr(0, dot));
    return stage.kind == Stage::Kind::partial ? Stage{} : stage;
  }
  if (ends(".reduced")) return {Stage::Kind::reduced, without(".reduced")};
  if (ends(".in")) return {Stage::Kind::in, without(".in")};
  return {};
}

ValueDType dtype_of_tap(std::string_view tap, const Layout& layout) {
  const Stage stage = stage_of(tap);
  const std::string_view value = stage.kind == Stage::Kind::none ? tap : std::string_view(stage.module);
  if (value.ends_with(".stat")) return ValueDType::accumulate;
  return layout.any_partial() ? ValueDType::wire : ValueDType::storage;
}

std::map<std::string, std::string, std::less<>> module_inputs(const Config& config) {
  std::map<std::string, std::string, std::less<>> inputs;
  for (const Node& node : build_graph(config).nodes) {
    // Ops that only bear a module's name, such as the split of a fused output, have outputs of other names.
    if (node.outputs[0] == node.module && !node.inputs.empty())
      inputs.emplace(node.module, node.inputs[0]);
  }
  return inputs;
}

std::string value_behind(std::string_view tap,
                         const std::map<std::string, std::string, std::less<>>& inputs) {
  const Stage stage = stage_of(tap);
  if (stage.kind == Stage::Kind::none) return std::string(tap);
  if (stage.kind != Stage::Kind::in) return stage.module;
  const auto input = inputs.find(stage.module);
  return input == inputs.end() ? std::string(tap) : input->second;
}

}  // namespace shardcheck
