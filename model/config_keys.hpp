// SPDX-License-Identifier: Apache-2.0
// The keys of config.json by model_type: which are read, which change nothing, which are refused.
#pragma once

#include <string_view>
#include <vector>

namespace shardcheck {

/// A key that would change the forward pass in a way that isn't built, unless it has its neutral value:
/// null, an empty list or object, or the JSON text in `neutral`.
struct RefusedKey {
  std::string_view key;
  std::string_view neutral;
};

struct ConfigKeyTable {
  std::string_view model_type;
  std::vector<std::string_view> used;
  std::vector<std::string_view> without_effect;
  std::vector<RefusedKey> refused;
};

/// The table of a model_type, or null for an architecture that isn't known.
const ConfigKeyTable* find_config_keys(std::string_view model_type);

/// "llama, mistral, qwen2, qwen3, olmo2, phi3, gpt2".
std::vector<std::string_view> known_model_types();

}  // namespace shardcheck
