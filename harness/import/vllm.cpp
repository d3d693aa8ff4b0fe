// SPDX-License-Identifier: Apache-2.0
// vLLM: {"layers.*.self_attn.qkv_proj": "QKVParallelLinear"}, the classes that a model's modules are made of, with
// their arguments where they matter. What each does: vllm, model_executor/layers/linear.py and vocab_parallel_embedding.py.
#include <fmt/format.h>

#include <algorithm>

#include "harness/import/call_text.hpp"
#include "model/modules.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

constexpr std::int64_t kVocabularyPadding = 64;

const std::vector<std::string> kClasses = {"QKVParallelLinear",
                                           "MergedColumnParallelLinear",
                                           "ColumnParallelLinear",
                                           "RowParallelLinear",
                                           "ReplicatedLinear",
                                           "VocabParallelEmbedding",
                                           "ParallelLMHead",
                                           "RMSNorm",
                                           "LayerNorm",
                                           "FusedMoE"};
const std::vector<std::string> kArguments = {
    "gather_output", "input_is_parallel", "reduce_results", "disable_tp", "bias", "skip_bias_add"};

/// vLLM joins q, k and v, and gate and up, whatever the checkpoint has: the parts of a joined name.
std::vector<std::string> parts_of(const std::string& pattern) {
  const std::size_t dot = pattern.rfind('.');
  const std::string parent = dot == std::string::npos ? "" : pattern.substr(0, dot + 1);
  const std::string name = dot == std::string::npos ? pattern : pattern.substr(dot + 1);
  if (name == "qkv_proj") return {pattern, parent + "q_proj", parent + "k_proj", parent + "v_proj"};
  if (name == "gate_up_proj") return {pattern, parent + "gate_proj", parent + "up_proj"};
  return {pattern};
}

void set_style(const CallText& call, ImportedRule& rule, const ImportedFile& file, const JsonPath& at) {
  const auto is = [&](const char* name) { return call.name == name; };
  const bool gathered = flag(call, "gather_output", false, file, at);
  if (is("QKVParallelLinear") || is("MergedColumnParallelLinear") || is("ColumnParallelLinear")) {
    rule.cut = Cut::colwise;
    rule.grain = is("QKVParallelLinear") ? ImportedGrain::head : ImportedGrain::row;
    rule.own_sections = !is("ColumnParallelLinear");
    rule.input_given = Layout::replicated;
    rule.output_left = gathered ? Layout::replicated : Layout::features;
  } else if (is("RowParallelLinear")) {
    rule.cut = Cut::rowwise;
    rule.grain = ImportedGrain::row;
    rule.input_given = flag(call, "input_is_parallel", true, file, at) ? Layout::features
                                                                       : Layout::replicated;
    rule.output_left = flag(call, "reduce_results", true, file, at) ? Layout::replicated
                                                                    : Layout::partial;
  } else if (is("VocabParallelEmbedding") || is("ParallelLMHead")) {
    rule.cut = is("ParallelLMHead") ? Cut::colwise : Cut::rowwise;
    rule.grain = ImportedGrain::row;
    rule.padded_to = kVocabularyPadding;
    rule.output_left = Layout::replicated;  // the logits are gathered where they are computed
  } else if (is("FusedMoE")) {
    rule.unchecked = "it needs experts";
  }
  if (flag(call, "disable_tp", false, file, at)) {
    rule.cut = Cut::none;
    rule.input_given = rule.output_left = Layout::any;
  }
}

}  // namespace

ImportedRules read_vllm(const ImportedFile& file) {
  ImportedRules result;
  for (const auto& [pattern, entry] : file.object({}).items()) {
    const JsonPath at{pattern};
    const CallText call = read_call(file, at);
    if (std::find(kClasses.begin(), kClasses.end(), call.name) == kClasses.end()) {
      file.places.fail_value(
          at, fmt::format("\"{}\": unknown class \"{}\"; did you mean \"{}\"? (one of {})", pattern,
                          call.name, nearest_name(call.name, kClasses), fmt::join(kClasses, ", ")));
    }
    check_keywords(call, kArguments, file, at);
    ImportedRule rule;
    rule.pattern = pattern;
    rule.style = call.arguments.empty() ? call.name : call.text();
    rule.place = file.places.key(at);
    rule.style_place = file.places.value(at);
    rule.selects = [parts = parts_of(pattern)](const Module& module) {
      return std::any_of(parts.begin(), parts.end(),
                         [&](const std::string& part) { return matches(part, module.path); });
    };
    set_style(call, rule, file, at);
    result.rules.push_back(std::move(rule));
  }
  return result;
}

}  // namespace shardcheck
