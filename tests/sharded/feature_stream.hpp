// SPDX-License-Identifier: Apache-2.0
// A plan whose norms are computed of parts.
#pragma once

namespace shardcheck {

/// The residual stream stays cut by features: no norm gathers it.
inline constexpr const char* kFeatureStream = R"json({ "name": "feature stream", "mesh": ["tp"],
  "weights": {
    "embed_tokens": {"tp": "shard(features)"}, "lm_head": {"tp": "shard(vocab)"},
    "layers.*.{input_layernorm,post_attention_layernorm}": {"tp": "shard(features)"},
    "norm": {"tp": "shard(features)"},
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "layers.*.{input_layernorm,post_attention_layernorm}.stat": "all_reduce(sum, tp)",
    "norm.stat": "all_reduce(sum, tp)",
    "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(features, tp)",
    "layers.*.self_attn.o_proj.out": "reduce_scatter(sum, features, tp)",
    "layers.*.mlp.{gate,up}_proj.in": "all_gather(features, tp)",
    "layers.*.mlp.down_proj.out": "reduce_scatter(sum, features, tp)",
    "lm_head.in": "all_gather(features, tp)", "lm_head.out": "all_gather(vocab, tp)" } })json";

}  // namespace shardcheck
