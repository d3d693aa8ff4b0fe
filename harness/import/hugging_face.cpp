// SPDX-License-Identifier: Apache-2.0
// Hugging Face: {"layers.*.mlp.down_proj": "rowwise"}. What each word does: transformers 5.24.0,
// distributed/tensor_parallel.py; the words before 5.0: transformers 4.57, integrations/tensor_parallel.py.
#include <fmt/format.h>

#include <algorithm>

#include "harness/import/sources.hpp"
#include "model/modules.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

struct Style {
  const char* name;
  Cut cut;
  Layout input_given, output_left;
  const char* unchecked;  // why it can't be said, or null
  const char* remark;
};

constexpr const char* kExperts = "it needs experts";
constexpr const char* kNoFused = "no weight here is fused along its columns";

// Rows and columns are cut in pieces of ceil(n/P), whole heads or not. `_rep` are the names before 5.0.
constexpr Style kStyles[] = {
    {"colwise", Cut::colwise, Layout::replicated, Layout::features, nullptr, ""},
    {"rowwise", Cut::rowwise, Layout::features, Layout::replicated, nullptr, ""},
    {"colwise_gather_output", Cut::colwise, Layout::replicated, Layout::replicated, nullptr, ""},
    {"colwise_rep", Cut::colwise, Layout::replicated, Layout::replicated, nullptr, ""},
    {"rowwise_split_input", Cut::rowwise, Layout::replicated, Layout::replicated, nullptr, ""},
    {"rowwise_rep", Cut::rowwise, Layout::replicated, Layout::replicated, nullptr, ""},
    {"embedding_rowwise", Cut::rowwise, Layout::any, Layout::replicated, nullptr, ""},
    {"embedding_colwise", Cut::colwise, Layout::any, Layout::replicated, nullptr, ""},
    {"packed_colwise", Cut::colwise, Layout::replicated, Layout::features, nullptr, ""},
    {"local_colwise", Cut::colwise, Layout::any, Layout::features, nullptr, ""},
    {"local_rowwise", Cut::rowwise, Layout::any, Layout::partial, nullptr, "left as partial sums"},
    {"gather", Cut::none, Layout::any, Layout::replicated, nullptr, "sums the block's output"},
    {"all_reduce", Cut::none, Layout::any, Layout::replicated, nullptr, ""},
    {"sequence_parallel", Cut::none, Layout::any, Layout::any, nullptr,
     "weight whole; takes and leaves what each rank has of the tokens"},
    {"replicate", Cut::none, Layout::any, Layout::any, nullptr, ""},
    {"local", Cut::none, Layout::any, Layout::any, nullptr, "no exchange"},
    {"local_params", Cut::none, Layout::any, Layout::any, nullptr, "no exchange"},
    {"replicated_with_grad_allreduce", Cut::none, Layout::any, Layout::any, nullptr,
     "weight whole; only its gradient is summed over the ranks"},
    {"packed_rowwise", Cut::none, Layout::any, Layout::any, kNoFused, ""},
    {"local_packed_rowwise", Cut::none, Layout::any, Layout::any, kNoFused, ""},
    {"mla_kv_a_proj", Cut::none, Layout::any, Layout::any, "it needs multi-head latent attention",
     ""},
    {"moe_tp_experts", Cut::none, Layout::any, Layout::any, kExperts, ""},
    {"moe_identity_expert", Cut::none, Layout::any, Layout::any, kExperts, ""},
    {"grouped_gemm", Cut::none, Layout::any, Layout::any, kExperts, ""},
    {"ep_router", Cut::none, Layout::any, Layout::any, kExperts, ""},
    {"ep_dispatch_experts", Cut::none, Layout::any, Layout::any, kExperts, ""}};

const Style& style_of(const std::string& word, const ImportedFile& file, const JsonPath& at) {
  std::vector<std::string> names;
  for (const Style& style : kStyles) {
    if (style.name == word) return style;
    names.emplace_back(style.name);
  }
  file.places.fail_value(
      at, fmt::format("\"{}\": unknown style \"{}\"; did you mean \"{}\"? (one of {})", at.back(),
                      word, nearest_name(word, names), fmt::join(names, ", ")));
}

void add_rules(const ImportedFile& file, const JsonPath& path, std::vector<ImportedRule>& rules) {
  for (const auto& [pattern, word] : file.object(path).items()) {
    JsonPath at = path;
    at.push_back(pattern);
    if (!word.is_string()) {
      file.places.fail_value(at, fmt::format("\"{}\": a style is a word such as \"colwise\"", pattern));
    }
    const Style& style = style_of(word.get<std::string>(), file, at);
    ImportedRule rule;
    rule.pattern = pattern;
    rule.style = style.name;
    rule.place = file.places.key(at);
    rule.style_place = file.places.value(at);
    rule.cut = style.cut;
    rule.grain = ImportedGrain::chunk;
    if (rule.style == "packed_colwise") rule.equal_blocks = 2;
    rule.input_given = style.input_given;
    rule.output_left = style.output_left;
    if (rule.style == "gather" || rule.style == "all_reduce") rule.output_made = Layout::partial;
    if (style.unchecked != nullptr) rule.unchecked = style.unchecked;
    rule.remark = style.remark;
    rules.push_back(std::move(rule));
  }
}

}  // namespace

ImportedRules read_hugging_face(const ImportedFile& file) {
  std::vector<ImportedRule> rules;
  JsonPath base;
  if (file.json.contains("plans")) {  // many, by configuration class
    std::vector<std::string> names;
    for (const auto& [name, plan] : file.object({"plans"}).items()) names.push_back(name);
    if (std::find(names.begin(), names.end(), file.select) == names.end()) {
      file.places.fail_key({"plans"},
                           fmt::format("the file holds {} plans; name one with --select: {}",
                                       names.size(), fmt::join(names, ", ")));
    }
    base = {"plans", file.select};
  }
  // A configuration class keeps the base model's plan; the model with a head adds one for the head.
  bool keyed = false;
  for (const char* name : {"base_model_tp_plan", "_tp_plan", "tp_plan", "tp"}) {
    JsonPath at = base;
    at.emplace_back(name);
    if (!file.object(base).contains(name) || file.object(base).at(name).is_string()) continue;
    keyed = true;
    if (!file.object(base).at(name).is_null()) add_rules(file, at, rules);
  }
  if (!keyed) add_rules(file, base, rules);
  return {std::move(rules), std::nullopt};
}

}  // namespace shardcheck
