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

Module rms_norm(std::string path, ModuleRole role, std::int64_t layer, std::int64_t features) {
  return norm(std::move(path), role, layer, features, false);
}

void add_qkv(const Config& c, const BlockPaths& at, std::int64_t layer, std::vector<Module>& all) {
  all.push_back(linear(at.attention + ".q_proj", ModuleRole::q, layer, c.q_size(), c.hidden_size,
                       c.qkv_bias));
  all.push_back(linear(at.attention + ".k_proj", ModuleRole::k, layer, c.kv_size(), c.hidden_size,
                       c.qkv_bias));
  all.push_back(linear(at.attention + ".v_proj", ModuleRole::v, layer, c.kv_size(), c.hidden_size,
                       c.qkv_bias));
}

void add_o(const Config& c, const BlockPaths& at, std::int64_t layer, std::vector<Module>& all) {
  all.push_back(
      linear(at.attention + ".o_proj", ModuleRole::o, layer, c.hidden_size, c.q_size(), c.o_bias));
}

void add_gated_mlp(const Config& c, const BlockPaths& at, std::int64_t layer, std::vector<Module>& all) {
  all.push_back(linear(at.mlp + ".gate_proj", ModuleRole::gate, layer, c.intermediate_size,
                       c.hidden_size, c.mlp_bias));
  all.push_back(linear(at.mlp + ".up_proj", ModuleRole::up, layer, c.intermediate_size,
                       c.hidden_size, c.mlp_bias));
  all.push_back(linear(at.mlp + ".down_proj", ModuleRole::down, layer, c.hidden_size,
                       c.intermediate_size, c.mlp_bias));
}

/// llama, and qwen3 with a norm of every q and k head: one weight of head_dim for all heads.
void add_llama_layer(const Config& c, std::int64_t layer, std::vector<Module>& all) {
  const BlockPaths at = block_paths(c, layer);
  all.push_back(
      rms_norm(at.layer + ".input_layernorm", ModuleRole::attention_norm, layer, c.hidden_size));
  add_qkv(c, at, layer, all);
  if (c.family == Family::qwen3) {
    all.push_back(rms_norm(at.attention + ".q_norm", ModuleRole::q_norm, layer, c.head_dim));
    all.push_back(rms_norm(at.attention + ".k_norm", ModuleRole::k_norm, layer, c.head_dim));
  }
  add_o(c, at, layer, all);
  all.push_back(
      rms_norm(at.layer + ".post_attention_layernorm", ModuleRole::mlp_norm, layer, c.hidden_size));
  add_gated_mlp(c, at, layer, all);
}

/// Norms over all q heads and all k heads, and after the branches instead of before them.
void add_olmo2_layer(const Config& c, std::int64_t layer, std::vector<Module>& all) {
  const BlockPaths at = block_paths(c, layer);
  add_qkv(c, at, layer, all);
  all.push_back(rms_norm(at.attention + ".q_norm", ModuleRole::q_norm, layer, c.q_size()));
  all.push_back(rms_norm(at.attention + ".k_norm", ModuleRole::k_norm, layer, c.kv_size()));
  add_o(c, at, layer, all);
  all.push_back(rms_norm(at.layer + ".post_attention_layernorm", ModuleRole::attention_post_norm,
                         layer, c.hidden_size));
  add_gated_mlp(c, at, layer, all);
  all.push_back(rms_norm(at.layer + ".post_feedforward_layernorm", ModuleRole::mlp_post_norm, layer,
                         c.hidden_size));
}

/// q | k | v and gate | up are one weight each.
void add_phi3_layer(const Config& c, std::int64_t layer, std::vector<Module>& all) {
  const BlockPaths at = block_paths(c, layer);
  const std::int64_t q = c.q_size(), kv = c.kv_size(), inner = c.intermediate_size;
  all.push_back(
      rms_norm(at.layer + ".input_layernorm", ModuleRole::attention_norm, layer, c.hidden_size));
  Module qkv = linear(at.attention + ".qkv_proj", ModuleRole::qkv, layer, q + 2 * kv, c.hidden_size,
                      c.qkv_bias);
  qkv.sections = {
      {ModuleRole::q, 0, q}, {ModuleRole::k, q, q + kv}, {ModuleRole::v, q + kv, q + 2 * kv}};
  all.push_back(std::move(qkv));
  add_o(c, at, layer, all);
  all.push_back(
      rms_norm(at.layer + ".post_attention_layernorm", ModuleRole::mlp_norm, layer, c.hidden_size));
  Module gate_up = linear(at.mlp + ".gate_up_proj", ModuleRole::gate_up, layer, 2 * inner,
                          c.hidden_size, c.mlp_bias);
  gate_up.sections = {{ModuleRole::gate, 0, inner}, {ModuleRole::up, inner, 2 * inner}};
  all.push_back(std::move(gate_up));
  all.push_back(
      linear(at.mlp + ".down_proj", ModuleRole::down, layer, c.hidden_size, inner, c.mlp_bias));
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
  const std::int64_t q = c.q_size(), k = q + c.kv_size(), v = k + c.kv_size();  // where each ends
  Module qkv = conv1d(at.attention + ".c_attn", ModuleRole::qkv, v, n, c.qkv_bias);
  qkv.sections = {{ModuleRole::q, 0, q}, {ModuleRole::k, q, k}, {ModuleRole::v, k, v}};
  all.push_back(std::move(qkv));
  all.push_back(conv1d(at.attention + ".c_proj", ModuleRole::o, n, q, c.o_bias));
  all.push_back(norm(at.layer + ".ln_2", ModuleRole::mlp_norm, layer, n, true));
  all.push_back(conv1d(at.mlp + ".c_fc", ModuleRole::fc, c.intermediate_size, n, c.mlp_bias));
  all.push_back(conv1d(at.mlp + ".c_proj", ModuleRole::down, n, c.intermediate_size, c.mlp_bias));
}

void add_layer(const Config& config, std::int64_t layer, std::vector<Module>& all) {
  switch (config.family) {
    case Family::llama:
    case Family::qwen3:
      return add_llama_layer(config, layer, all);
    case Family::olmo2:
      return add_olmo2_layer(config, layer, all);
    case Family::phi3:
      return add_phi3_layer(config, layer, all);
    case Family::gpt2:
      return add_gpt2_layer(config, layer, all);
  }
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
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(config, layer, all);
    all.push_back(norm("ln_f", ModuleRole::final_norm, -1, config.hidden_size, true));
    all.push_back(lm_head(config, "wte"));
  } else {
    all.push_back(embedding("embed_tokens", ModuleRole::token_embedding, config.vocab_size,
                            config.hidden_size));
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) add_layer(config, layer, all);
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
