// SPDX-License-Identifier: Apache-2.0
// PyTorch: {"layers.*.mlp.down_proj": "RowwiseParallel(output_layouts=Shard(1))"}, the plan that parallelize_module
// takes, each style as a call or as {"style": ..., keyword: ...}. What each style does: torch 2.15,
// distributed/tensor/parallel/style.py. An activation is [batch, sequence, features], or with "activation_dims": 2
// beside "plan" [tokens, features].
#include <fmt/format.h>

#include <charconv>

#include "harness/import/call_text.hpp"
#include "model/json_text.hpp"
#include "model/modules.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

const std::vector<std::string> kStyles = {"ColwiseParallel",     "RowwiseParallel",
                                          "SequenceParallel",    "PrepareModuleInput",
                                          "PrepareModuleOutput", "PrepareModuleInputOutput"};

class Reader {
 public:
  explicit Reader(const ImportedFile& file) : file_(file) {}

  std::vector<ImportedRule> read() {
    JsonPath base;
    if (file_.json.contains("plan") && !file_.json.at("plan").is_string() &&
        !file_.json.at("plan").contains("style")) {
      base = {"plan"};
      for (const auto& [key, value] : file_.json.items()) {
        if (key == "plan") continue;
        if (key != "activation_dims") {
          file_.places.fail_key({key},
                                fmt::format("unknown key \"{}\"; beside \"plan\" stands only "
                                            "\"activation_dims\"",
                                            key));
        }
        if (value != 2 && value != 3) {
          file_.places.fail_value({key},
                                  "\"activation_dims\" is 3, [batch, sequence, features], or 2, "
                                  "[tokens, features]");
        }
        dims_ = value.get<int>();
      }
    }
    std::vector<ImportedRule> rules;
    for (const auto& [pattern, entry] : file_.object(base).items()) {
      JsonPath at = base;
      at.push_back(pattern);
      rules.push_back(rule(pattern, at));
    }
    return rules;
  }

 private:
  ImportedRule rule(const std::string& pattern, const JsonPath& at) {
    const CallText call = read_call(file_, at);
    ImportedRule rule;
    rule.pattern = pattern;
    rule.style = call.text();
    rule.place = file_.places.key(at);
    rule.style_place = file_.places.value(at);
    rule.grain = ImportedGrain::chunk;
    flag(call, "use_local_output", true, file_, at);  // local or not, the numbers are the same
    if (call.name == "ColwiseParallel" || call.name == "RowwiseParallel") {
      check_keywords(call, {"input_layouts", "output_layouts", "use_local_output"}, file_, at);
      rule.cut = call.name == "ColwiseParallel" ? Cut::colwise : Cut::rowwise;
      const bool colwise = rule.cut == Cut::colwise;
      rule.input_given = layout(call, "input_layouts",
                                colwise ? Layout::replicated : Layout::features, at);
      rule.output_left = layout(call, "output_layouts",
                                colwise ? Layout::features : Layout::replicated, at);
    } else if (call.name == "SequenceParallel") {
      check_keywords(call, {"sequence_dim", "use_local_output"}, file_, at);
      if (const CallText* dim = call.find("sequence_dim")) shard(*dim, call, at);
      rule.remark = "weight whole; takes and leaves what each rank has of the tokens";
    } else if (call.name == "PrepareModuleInput") {
      check_keywords(call,
                     {"input_layouts", "desired_input_layouts", "input_kwarg_layouts",
                      "desired_input_kwarg_layouts", "use_local_output"},
                     file_, at);
      prepare_input(call, rule, at);
    } else if (call.name == "PrepareModuleOutput") {
      check_keywords(call, {"output_layouts", "desired_output_layouts", "use_local_output"}, file_, at);
      prepare_output(call, rule, at);
    } else if (call.name == "PrepareModuleInputOutput") {
      check_keywords(call,
                     {"input_layouts", "desired_input_layouts", "input_kwarg_layouts",
                      "desired_input_kwarg_layouts", "use_local_input", "output_layouts",
                      "desired_output_layouts", "use_local_output"},
                     file_, at);
      prepare_input(call, rule, at);
      prepare_output(call, rule, at);
    } else {
      file_.places.fail_value(
          at, fmt::format("\"{}\": unknown style \"{}\"; did you mean \"{}\"? (one of {})", pattern,
                          call.name, nearest_name(call.name, kStyles), fmt::join(kStyles, ", ")));
    }
    return rule;
  }

  void prepare_input(const CallText& call, ImportedRule& rule, const JsonPath& at) {
    if (call.find("input_kwarg_layouts") != nullptr) {
      file_.places.fail_value(at,
                              fmt::format("{}: layouts of keyword arguments are not read; name the "
                                          "hidden states' in input_layouts, the first",
                                          call.name));
    }
    rule.input_given = layout(call, "input_layouts", Layout::any, at);
    rule.input_wanted = layout(call, "desired_input_layouts", Layout::any, at);
  }
  void prepare_output(const CallText& call, ImportedRule& rule, const JsonPath& at) {
    rule.output_made = layout(call, "output_layouts", Layout::any, at);
    rule.output_left = layout(call, "desired_output_layouts", Layout::any, at);
  }

  /// The layout of the first argument or output: the hidden states. Others are masks, positions and the like.
  Layout layout(const CallText& call, const std::string& keyword, Layout otherwise, const JsonPath& at) {
    const CallText* value = call.find(keyword);
    if (value == nullptr) return otherwise;
    if (value->name.empty()) {
      if (value->arguments.empty()) return otherwise;
      value = &value->arguments[0].second;
    }
    if (value->name == "None") return otherwise;
    if (value->name == "Replicate") return Layout::replicated;
    if (value->name == "Partial") return Layout::partial;
    if (value->name == "Shard" && value->arguments.size() == 1)
      return shard(value->arguments[0].second, call, at);
    file_.places.fail_value(
        at, fmt::format("{}: unknown layout \"{}\" in {}; use Shard(d), Replicate() or Partial()",
                        call.name, value->text(), keyword));
  }

  Layout shard(const CallText& dim, const CallText& call, const JsonPath& at) {
    int number = 0;
    const auto [end, error] = std::from_chars(dim.name.data(), dim.name.data() + dim.name.size(),
                                              number);
    const bool whole = error == std::errc() && end == dim.name.data() + dim.name.size() &&
                       !dim.name.empty();
    if (whole && number < 0) number += dims_;
    if (!whole || number < 0 || number >= dims_) {
      file_.places.fail_value(
          at, fmt::format("{}: an activation has {} dimensions, so no dimension {}", call.name,
                          dims_, dim.text()));
    }
    if (number == dims_ - 1) return Layout::features;
    return number == dims_ - 2 ? Layout::tokens : Layout::sequence;
  }

  const ImportedFile& file_;
  int dims_ = 3;
};

}  // namespace

ImportedRules read_dtensor(const ImportedFile& file) { return {Reader(file).read(), std::nullopt}; }

}  // namespace shardcheck
