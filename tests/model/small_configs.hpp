// SPDX-License-Identifier: Apache-2.0
// Small configs as JSON, one key of which a test changes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "input_error.hpp"
#include "model/config.hpp"

namespace shardcheck {

using nlohmann::json;

inline json llama() {
  return {{"model_type", "llama"},  {"hidden_size", 48},        {"intermediate_size", 80},
          {"num_hidden_layers", 3}, {"num_attention_heads", 6}, {"num_key_value_heads", 2},
          {"vocab_size", 97},       {"rms_norm_eps", 1e-5}};
}

inline json qwen2() {
  json config = llama();
  config["model_type"] = "qwen2";
  return config;
}

inline json gpt2() {
  return {{"model_type", "gpt2"}, {"n_embd", 40},     {"n_layer", 2},
          {"n_head", 5},          {"vocab_size", 61}, {"n_positions", 33}};
}

inline json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

inline json without(json config, const char* key) {
  config.erase(key);
  return config;
}

inline Config parse(const json& config, const ConfigOptions& options = {}) {
  return parse_config(config.dump(), "dir/tiny/config.json", options);
}

inline std::string error(const json& config, const ConfigOptions& options = {}) {
  return input_error([&] { parse(config, options); });
}

}  // namespace shardcheck
