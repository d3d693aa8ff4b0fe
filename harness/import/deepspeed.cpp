// SPDX-License-Identifier: Apache-2.0
// DeepSpeed: {"tensor_parallel": {"partition_config": {"layer_specs": [{"patterns": [".*\\.o_proj\\.weight$"],
// "partition_type": "row"}]}}}. What a spec does: DeepSpeed, module_inject/autotp_config.py, auto_tp.py, layers.py.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <regex>

#include "harness/import/sources.hpp"
#include "model/json_text.hpp"

namespace shardcheck {
namespace {

using Cut = ImportedCut;
using Layout = ImportedLayout;

constexpr std::size_t kLongestPattern = 1000;

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// The specs in order; the first that matches a weight has it. Patterns are tried from the name's beginning, not to its
/// end, on the full name as the model with a head and as the base model spells it.
struct Patterns {
  std::vector<std::vector<std::regex>> specs;

  static bool matches(const std::vector<std::regex>& spec, const std::string& path) {
    return std::any_of(spec.begin(), spec.end(), [&](const std::regex& pattern) {
      for (const char* before : {"model.", "transformer.", ".", ""}) {
        if (std::regex_search(before + path + ".weight", pattern,
                              std::regex_constants::match_continuous)) {
          return true;
        }
      }
      return false;
    });
  }
  bool first_is(std::size_t spec, const std::string& path) const {
    for (std::size_t i = 0; i < spec; ++i) {
      if (matches(specs[i], path)) return false;
    }
    return matches(specs[spec], path);
  }
};

class Reader {
 public:
  explicit Reader(const ImportedFile& file)
      : file_(file), patterns_(std::make_shared<Patterns>()) {}

  ImportedRules read() {
    JsonPath base;
    for (const char* key : {"tensor_parallel", "partition_config"}) {
      if (file_.object(base).contains(key)) base.emplace_back(key);
    }
    const nlohmann::json& config = file_.object(base);
    if (!config.contains("layer_specs")) {
      file_.places.fail_at(
          file_.places.value(base),
          "no \"layer_specs\" here; write a preset's specs out, with the patterns, "
          "\"partition_type\" and \"shape\" that it stands for");
    }
    refuse_preset(config);
    JsonPath list = base;
    list.emplace_back("layer_specs");
    if (!config.at("layer_specs").is_array())
      file_.places.fail_value(list, "\"layer_specs\" is a list of objects");
    ImportedRules result;
    for (std::size_t i = 0; i < config.at("layer_specs").size(); ++i) {
      JsonPath at = list;
      at.push_back(std::to_string(i));
      add(file_.object(at), at, result.rules);
    }
    if (config.value("strict_mode", nlohmann::json(false)) == true) {
      JsonPath at = base;
      at.emplace_back("strict_mode");
      result.every_linear = file_.places.key(at);
    }
    return result;
  }

 private:
  /// DeepSpeed tries a preset's specs after the file's own.
  void refuse_preset(const nlohmann::json& config) {
    const JsonPath at{"tensor_parallel", "preset_model"};
    const nlohmann::json& file = file_.object({});
    if (!file.contains(at[0]) || !file.at(at[0]).contains(at[1]) || file.at(at[0]).at(at[1]).is_null()) return;
    if (config.value("use_default_specs", nlohmann::json(true)) == false) return;
    file_.places.fail_key(at, "a preset's specs come after the file's own; write them out, and "
                              "\"use_default_specs\": false");
  }

  void add(const nlohmann::json& spec, const JsonPath& at, std::vector<ImportedRule>& rules) {
    const std::vector<std::string> known = {"patterns",      "partition_type", "shape",
                                            "partition_dim", "model_types",    "gather_output"};
    for (const auto& [key, value] : spec.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        fail_key(at, key,
                 fmt::format("a spec has no key \"{}\"; did you mean \"{}\"?", key,
                             nearest_name(key, known)));
      }
    }
    ImportedRule rule;
    rule.place = file_.places.value(at);
    rule.style_place = rule.place;
    rule.grain = ImportedGrain::kv_group;
    std::vector<std::regex> own = regexes(spec, at, rule);
    if (!for_this_model(spec, at)) return;
    const std::size_t number = patterns_->specs.size();
    patterns_->specs.push_back(std::move(own));
    rule.selects = [patterns = patterns_, number](const Module& module) {
      return module.kind == ModuleKind::linear && patterns->first_is(number, module.path);
    };
    const std::string type = text(spec, "partition_type", "column", at);
    const std::string lower = in_lower_case(type);
    const bool gather = spec.value("gather_output", nlohmann::json(false)) == true;
    if (lower == "column") {
      rule.cut = Cut::colwise;
      rule.input_given = Layout::replicated;
      rule.output_left = gather ? Layout::replicated : Layout::features;
    } else if (lower == "row") {
      rule.cut = Cut::rowwise;
      rule.input_given = Layout::features;
      rule.output_left = Layout::replicated;
      rule.head_splits_input = true;
    } else if (lower != "skip") {
      fail_value(at, "partition_type",
                 fmt::format("unknown partition_type \"{}\"; use column, row or skip", type));
    }
    rule.style = lower + (gather ? " with gather_output" : "");
    if (spec.contains("partition_type")) rule.style_place = value_place(at, "partition_type");
    if (spec.contains("shape") && !spec.at("shape").is_null()) {
      if (gather)
        fail_key(at, "gather_output",
                 "DeepSpeed doesn't gather the output of a weight with a shape");
      rule.style_place = value_place(at, "shape");
      shape(spec, at, rule);
    }
    rules.push_back(std::move(rule));
  }

  std::vector<std::regex> regexes(const nlohmann::json& spec, const JsonPath& at, ImportedRule& rule) {
    if (!spec.contains("patterns") || !spec.at("patterns").is_array() || spec.at("patterns").empty()) {
      file_.places.fail_value(at, "a spec needs \"patterns\", a list of regular expressions");
    }
    std::vector<std::regex> result;
    for (std::size_t i = 0; i < spec.at("patterns").size(); ++i) {
      JsonPath place = at;
      place.insert(place.end(), {"patterns", std::to_string(i)});
      const nlohmann::json& pattern = spec.at("patterns")[i];
      if (!pattern.is_string()) file_.places.fail_value(place, "a pattern is a string");
      if (pattern.get_ref<const std::string&>().size() > kLongestPattern) {  // the library reads it by recursion
        file_.places.fail_value(place, fmt::format("a pattern of more than {} characters is not read here",
                                                   kLongestPattern));
      }
      if (i == 0) rule.place = file_.places.value(place);
      rule.pattern += (i == 0 ? "" : " or ") + pattern.get<std::string>();
      try {
        result.emplace_back(pattern.get<std::string>());
      } catch (const std::regex_error& error) {
        file_.places.fail_value(
            place, fmt::format("{} is no regular expression that can be read here ({})",
                               quoted(pattern), error.what()));
      }
    }
    return result;
  }

  bool for_this_model(const nlohmann::json& spec, const JsonPath& at) {
    if (!spec.contains("model_types") || spec.at("model_types").is_null()) return true;
    if (!spec.at("model_types").is_array())
      fail_value(at, "model_types", "\"model_types\" is a list of names");
    const auto is_it = [&](const nlohmann::json& name) {
      return name.is_string() &&
             in_lower_case(name.get<std::string>()) == in_lower_case(file_.model_type);
    };
    return spec.at("model_types").empty() ||
           std::any_of(spec.at("model_types").begin(), spec.at("model_types").end(), is_it);
  }

  /// [3, -1], [[q, k, v], -1]: runs of rows that are cut each on its own.
  void shape(const nlohmann::json& spec, const JsonPath& at, ImportedRule& rule) {
    const nlohmann::json& shape = spec.at("shape");
    const bool rows = rule.cut == Cut::colwise;
    const nlohmann::json dim = spec.value("partition_dim", nlohmann::json(rows ? 0 : 1));
    if (!shape.is_array() || shape.empty() || !dim.is_number_integer()) {
      fail_value(at, "shape", "\"shape\" is a list such as [3, -1] or [[4096, 1024, 1024], -1]");
    }
    if (shape.size() > 2) {
      rule.unchecked = "it needs experts";
      return;
    }
    if (!rows || dim != 0) {
      rule.unchecked = "no weight here is fused along its columns";
      return;
    }
    const nlohmann::json& blocks = shape[0];
    const auto size = [&](const nlohmann::json& number) {
      if (!number.is_number_integer() || number.get<std::int64_t>() < 1)
        fail_value(at, "shape", fmt::format("{} is no number of rows", quoted(number)));
      return number.get<std::int64_t>();
    };
    if (blocks.is_array()) {
      for (const nlohmann::json& number : blocks) rule.blocks.push_back(size(number));
    } else if (blocks != -1) {
      rule.equal_blocks = size(blocks);
    }
  }

  std::string text(const nlohmann::json& spec, const char* key, const char* otherwise,
                   const JsonPath& at) {
    if (!spec.contains(key)) return otherwise;
    if (!spec.at(key).is_string()) fail_value(at, key, fmt::format("\"{}\" is a word", key));
    return spec.at(key).get<std::string>();
  }
  std::size_t value_place(JsonPath at, const std::string& key) const {
    at.push_back(key);
    return file_.places.value(at);
  }
  [[noreturn]] void fail_value(JsonPath at, const std::string& key, const std::string& message) const {
    at.push_back(key);
    file_.places.fail_value(at, message);
  }
  [[noreturn]] void fail_key(JsonPath at, const std::string& key, const std::string& message) const {
    at.push_back(key);
    file_.places.fail_key(at, message);
  }

  const ImportedFile& file_;
  std::shared_ptr<Patterns> patterns_;
};

}  // namespace

ImportedRules read_deepspeed(const ImportedFile& file) { return Reader(file).read(); }

}  // namespace shardcheck
