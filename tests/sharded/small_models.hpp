// SPDX-License-Identifier: Apache-2.0
// Small models with synthetic weights and head counts that don't divide, and plans for them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "model/model.hpp"
#include "model/sources.hpp"
#include "sharded/plan.hpp"

namespace shardcheck {

/// The part of a config that the tests vary. Hidden and q size differ, and no two extents are alike.
struct SmallModel {
  std::string_view model_type = "llama";
  std::int64_t heads = 9, kv_heads = 3, head_dim = 8;
  std::int64_t hidden = 40, ffn = 53, vocab = 257, layers = 2;
  bool biases = false, tied = false;
  std::int64_t window = 0;  // mistral
};

inline std::string config_text(const SmallModel& m) {
  if (m.model_type == "gpt2") {
    return fmt::format(R"({{"model_type": "gpt2", "n_embd": {}, "n_head": {}, "n_inner": {}, "n_layer": {},
                           "n_positions": 64, "vocab_size": {}, "layer_norm_epsilon": 1e-5,
                           "activation_function": "gelu_new", "tie_word_embeddings": {}}})",
                       m.heads * m.head_dim, m.heads, m.ffn, m.layers, m.vocab, m.tied);
  }
  const std::string biases = m.model_type == "llama"
                                 ? fmt::format(R"("attention_bias": {0}, "mlp_bias": {0},)", m.biases)
                                 : "";
  const std::string window = m.window > 0 ? fmt::format(R"("sliding_window": {},)", m.window) : "";
  return fmt::format(
      R"({{"model_type": "{}", "hidden_size": {}, "num_attention_heads": {}, "num_key_value_heads": {},
                         "head_dim": {}, "intermediate_size": {}, "num_hidden_layers": {}, "vocab_size": {},
                         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, {} {}
                         "hidden_act": "silu", "tie_word_embeddings": {}}})",
      m.model_type, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.layers, m.vocab, biases,
      window, m.tied);
}

inline Model make_model(const SmallModel& shape, std::uint64_t seed = 1) {
  Config config = parse_config(config_text(shape), "small.json");
  auto source = synthetic_source(seed, modules(config));
  return Model(std::move(config), std::move(source));
}

/// The same without weights.
inline Model shapes(const SmallModel& shape) {
  return {parse_config(config_text(shape), "small.json"), nullptr};
}

inline Mesh line(int ranks) { return Mesh{{{"tp", ranks}}}; }

inline Plan megatron() { return load_plan("megatron"); }

/// A plan for one family over the axis tp, from the entries of its two sections.
inline Plan tp_plan(const std::string& weights, const std::string& collectives,
                    const std::string& rest = "") {
  return parse_plan(
      fmt::format(
          R"json({{"name": "test", "mesh": ["tp"], "weights": {{{}}}, "collectives": {{{}}}{}}})json",
          weights, collectives, rest),
      "test.json");
}

/// What megatron.json says for llama, in pieces, so that a test can leave one out or replace it.
inline constexpr const char* kEmbedCut = R"json("embed_tokens": {"tp": "shard(vocab)"})json";
inline constexpr const char* kAttentionCuts =
    R"json("layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
       "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
       "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"})json";
inline constexpr const char* kMlpCuts =
    R"json("layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"})json";
inline constexpr const char* kHeadCut = R"json("lm_head": {"tp": "shard(vocab)"})json";
inline constexpr const char* kEmbedSum = R"json("embed_tokens.out": "all_reduce(sum, tp)")json";
inline constexpr const char* kAttentionSum = R"json("layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)")json";
inline constexpr const char* kMlpSum = R"json("layers.*.mlp.down_proj.out": "all_reduce(sum, tp)")json";
inline constexpr const char* kHeadGather = R"json("lm_head.out": "all_gather(vocab, tp)")json";

}  // namespace shardcheck
