// SPDX-License-Identifier: Apache-2.0
// What a transformer is made of: the part of Hugging Face's config.json that changes the forward pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/dtype.hpp"

namespace shardcheck {

/// The architectures that reference/ and sharded/ know. mistral and qwen2 are members of the llama family.
enum class Family { llama, gpt2, qwen3, olmo2, phi3 };

enum class Activation { silu, gelu_tanh };

/// Rotary embedding. Frequency of pair i: 1 / pow(theta, 2i / head_dim), then scaled by type:
/// linear divides by `factor`; llama3 divides the low frequencies and blends the middle ones.
struct RopeConfig {
  enum class Type { none, standard, linear, llama3 };
  Type type = Type::none;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_max_positions = 8192.0;
};

struct Config {
  std::string name;        // shown in reports: the folder's or file's name, or the shipped config's
  std::string model_type;  // as written: "llama", "mistral", "qwen2", "gpt2", "qwen3", "olmo2", "phi3"
  Family family = Family::llama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_positions = 0;
  double norm_eps = 0.0;
  Activation activation = Activation::silu;
  RopeConfig rope;                                   // type none: learned positions (gpt2)
  std::vector<std::optional<std::int64_t>> windows;  // per layer: keys j with i - j < window are seen
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool tied_embeddings = false;
  DType checkpoint_dtype = DType::f32;  // torch_dtype / dtype

  std::int64_t q_size() const { return num_heads * head_dim; }
  std::int64_t kv_size() const { return num_kv_heads * head_dim; }
};

struct ConfigOptions {
  std::vector<std::string> ignored_keys;   // --ignore-key: unlisted keys to go on without
  std::optional<std::int64_t> num_layers;  // --layers: cut the depth
};

/// Parses config.json text. `origin` is the path named in messages.
/// Throws InputError on malformed JSON (line and column), a missing or wrong-typed field, a value outside its
/// range, a key that is refused, and a key that is in none of the family's three lists.
Config parse_config(std::string_view json_text, const std::string& origin,
                    const ConfigOptions& options = {});
Config read_config(const std::filesystem::path& file, const ConfigOptions& options = {});

/// The three lists of a family, for docs and tests.
struct ConfigKeys {
  std::vector<std::string> used, without_effect, refused;
};
ConfigKeys config_keys(std::string_view model_type);

}  // namespace shardcheck
