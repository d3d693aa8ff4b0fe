// SPDX-License-Identifier: Apache-2.0
#include "model/config_rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace shardcheck {
namespace {

constexpr double kLargest = 1e30;
constexpr double kDefaultTheta = 10000.0;

RopeConfig::Type read_type(const ConfigFields& scaling, bool must_be_given, bool only_default) {
  // "type" is the older name of "rope_type"; files written in between hold both.
  const bool has_both = scaling.has("rope_type") && scaling.has("type");
  const std::string_view key = scaling.has("rope_type") || !scaling.has("type") ? "rope_type" : "type";
  const std::string word = must_be_given ? scaling.text(key)
                                         : scaling.text(key, std::string("default"));
  if (has_both && scaling.text("type") != word) {
    scaling.fail("type", fmt::format("\"rope_type\" says \"{}\"", word), "remove one of the two");
  }
  if (word == "default") return RopeConfig::Type::standard;
  if (only_default) {
    scaling.fail(key, "for this family only default is supported (longrope is not)",
                 "use another model");
  }
  if (word == "linear") return RopeConfig::Type::linear;
  if (word == "llama3") return RopeConfig::Type::llama3;
  scaling.fail(key, "only default, linear and llama3 are supported", "use another model");
}

void check_rope_keys(const ConfigFields& scaling, std::string_view object_key,
                     RopeConfig::Type type, const ConfigOptions& options) {
  std::vector<std::string_view> known = {"rope_type", "type", "rope_theta",
                                         "original_max_position_embeddings"};
  if (type != RopeConfig::Type::standard) known.push_back("factor");
  if (type == RopeConfig::Type::llama3) {
    known.push_back("low_freq_factor");
    known.push_back("high_freq_factor");
  }
  for (const auto& [key, value] : scaling.object().items()) {
    const std::string full = fmt::format("{}.{}", object_key, key);
    const bool ignored = std::find(options.ignored_keys.begin(), options.ignored_keys.end(), full) !=
                         options.ignored_keys.end();
    const bool neutral = value.is_null() || ((key == "factor" || key == "partial_rotary_factor" ||
                                              key == "attention_factor") &&
                                             value == 1.0);
    if (!ignored && !neutral && std::find(known.begin(), known.end(), key) == known.end()) {
      scaling.fail(key, "this rotary embedding has no such key, so it may change the model",
                   fmt::format("use --ignore-key {} if it doesn't", full));
    }
  }
}

}  // namespace

RopeConfig read_rope(const ConfigFields& fields, const std::string& origin,
                     const ConfigOptions& options) {
  RopeConfig rope;
  rope.type = RopeConfig::Type::standard;
  rope.theta = fields.number("rope_theta", 0.0, kLargest, kDefaultTheta);
  if (fields.has("rope_scaling") && fields.has("rope_parameters")) {
    fields.fail("rope_scaling",
                "\"rope_parameters\" is given too, and either describes the whole embedding",
                "remove one of the two");
  }
  const bool is_new = fields.has("rope_parameters");
  const std::string_view object_key = is_new ? "rope_parameters" : "rope_scaling";
  const nlohmann::json* object = fields.find(object_key);
  if (object == nullptr) return rope;
  if (!object->is_object())
    fields.fail(object_key, "it must be an object or null", "correct it in the file");

  const ConfigFields scaling(*object, origin, fmt::format("{}.", object_key));
  // transformers has longrope for phi3 and nothing else beside the default.
  rope.type = read_type(scaling, !is_new, fields.text("model_type") == "phi3");
  check_rope_keys(scaling, object_key, rope.type, options);
  const double theta = scaling.number("rope_theta", 0.0, kLargest, rope.theta);
  if (fields.has("rope_theta") && theta != rope.theta) {
    scaling.fail("rope_theta", fmt::format("\"rope_theta\" beside it is {}", rope.theta),
                 "remove one of the two");
  }
  rope.theta = theta;
  if (rope.type == RopeConfig::Type::standard) return rope;

  rope.factor = scaling.number("factor", 0.0, kLargest);
  if (rope.type == RopeConfig::Type::llama3) {
    rope.low_freq_factor = scaling.number("low_freq_factor", 0.0, kLargest);
    rope.high_freq_factor = scaling.number("high_freq_factor", 0.0, kLargest);
    rope.original_max_positions = scaling.number("original_max_position_embeddings", 0.0, kLargest);
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      scaling.fail("high_freq_factor",
                   fmt::format("it must be above low_freq_factor = {}", rope.low_freq_factor),
                   "correct it in the file");
    }
  }
  return rope;
}

}  // namespace shardcheck
