// SPDX-License-Identifier: Apache-2.0
#include "model/modules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace shardcheck {
namespace {

Module module_of(std::string path, ModuleKind kind, ModuleRole role, std::int64_t out, std::int64_t in) {
  Module module{};
  module.path = std::move(path);
  module.kind = kind;
  module.role = role;
  module.out = out;
  module.in = in;
  return module;
}

Module embedding(std::string path, ModuleRole role, std::int64_t entries, std::int64_t features) {
  return module_of(std::move(path), ModuleKind::embedding, role, entries, features);
}

Module norm(std::string path, ModuleRole role, std::int64_t layer, std::int64_t features,
            bool has_bias) {
  Module module = module_of(std::move(path), ModuleKind::norm, role, features, 1);
  module.layer = layer;
  module.has_bias = has_bias;
  return module;
}

Module linear(std::string path, ModuleRole role, std::int64_t layer, std::int64_t out,
              std::int64_t in, bool has_bias) {
  Module module = module_of(std::move(path), ModuleKind::linear, role, out, in);
  module.layer = layer;
  module.has_bias = has_bias;
  return module;
}

Module lm_head(const Config& config, std::string_view token_embedding) {
  Module module = linear("lm_head", ModuleRole::lm_head, -1, config.vocab_size, config.hidden_size,
                         false);
  if (config.tied_embeddings) module.tied_to = std::string(token_embedding);
  return module;
}

void add_llama_layer(const Config& c, std::int64_t layer, std::vector<Module>& all) {
  const BlockPaths at = block_paths(c, layer);
  all.push_back(
      norm(at.layer + ".input_layernorm", ModuleRole::attention_norm, layer, c.hidden_size, false));
  all.push_back(linear(at.attention + ".q_proj", ModuleRole::q, layer, c.q_size(), c.hidden_size,
                       c.qkv_bias));
  all.push_back(linear(at.attention + ".k_proj", ModuleRole::k, layer, c.kv_size(), c.hidden_size,
                       c.qkv_bias));
  all.push_back(linear(at.attention + ".v_proj", ModuleRole::v, layer, c.kv_size(), c.hidden_size,
                       c.qkv_bias));
  all.push_back(
      linear(at.attention + ".o_proj", ModuleRole::o, layer, c.hidden_size, c.q_size(), c.o_bias));
  all.push_back(norm(at.layer + ".post_attention_layernorm", ModuleRole::mlp_norm, layer,
                     c.hidden_size, false));
  all.push_back(linear(at.mlp + ".gate_proj", ModuleRole::gate, layer, c.intermediate_size,
                       c.hidden_size, c.mlp_bias));
  all.push_back(linear(at.mlp + ".up_proj", ModuleRole::up, layer, c.intermediate_size,
                       c.hidden_size, c.mlp_bias));
  all.push_back(linear(at.mlp + ".down_proj", ModuleRole::down, layer, c.hidden_size,
                       c.intermediate_size, c.mlp_bias));
}

void add_gpt2_layer(const Config& c, std::int64_t layer, std::vector<Module>& all) {
  const BlockPaths at = block_paths(c, layer);
  const std::int64_t n = c.hidden_size;
  const auto conv1d = [&](std::string path, ModuleRole role, std::int64_t out, std::int64_t in,
                          bool has_bias) {
    Module module = linear(std::move(path), role, layer, out, in, has_bias);
    module.stored_transposed = true;
    return module;
  };
  all.push_back(norm(at.layer + ".ln_1", ModuleRole::attention_norm, layer, n, true));
  Module qkv = conv1d(at.attention + ".c_attn", ModuleRole::qkv, 3 * n, n, c.qkv_bias);
  qkv.sections = {{ModuleRole::q, 0, n}, {ModuleRole::k, n, 2 * n}, {ModuleRole::v, 2 * n, 3 * n}};
  all.push_back(std::move(qkv));
  all.push_back(conv1d(at.attention + ".c_proj", ModuleRole::o, n, n, c.o_bias));
  all.push_back(norm(at.layer + ".ln_2", ModuleRole::mlp_norm, layer, n, true));
  all.push_back(conv1d(at.mlp + ".c_fc", ModuleRole::fc, c.intermediate_size, n, c.mlp_bias));
  all.push_back(conv1d(at.mlp + ".c_proj", ModuleRole::down, n, c.intermediate_size, c.mlp_bias));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

std::vector<Module> modules(const Config& config) {
  std::vector<Module> all;
  if (config.family == Family::gpt2) {
    all.push_back(embedding("wte", ModuleRole::token_embedding, config.vocab_size, config.hidden_size));
    all.push_back(
        embedding("wpe", ModuleRole::position_embedding, config.max_positions, config.hidden_size));
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
      add_gpt2_layer(config, layer, all);
    all.push_back(norm("ln_f", ModuleRole::final_norm, -1, config.hidden_size, true));
    all.push_back(lm_head(config, "wte"));
  } else {
    all.push_back(embedding("embed_tokens", ModuleRole::token_embedding, config.vocab_size,
                            config.hidden_size));
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
      add_llama_layer(config, layer, all);
    all.push_back(norm("norm", ModuleRole::final_norm, -1, config.hidden_size, false));
    all.push_back(lm_head(config, "embed_tokens"));
  }
  return all;
}

std::string_view strip_prefix(std::string_view path) {
  for (const std::string_view prefix :
       {std::string_view("model."), std::string_view("transformer.")}) {
    if (path.substr(0, prefix.size()) == prefix) return path.substr(prefix.size());
  }
  return path;
}

BlockPaths block_paths(const Config& config, std::int64_t layer) {
  const bool is_gpt2 = config.family == Family::gpt2;
  const std::string path = fmt::format("{}.{}", is_gpt2 ? "h" : "layers", layer);
  return {path, path + (is_gpt2 ? ".attn" : ".self_attn"), path + ".mlp"};
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest;
  std::size_t least = static_cast<std::size_t>(-1);
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace shardcheck
