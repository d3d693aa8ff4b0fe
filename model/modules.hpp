// SPDX-License-Identifier: Apache-2.0
// The module tree of a model: Hugging Face paths, the weights under them and their canonical shapes.
// Shared by reference/ and sharded/, which must agree on names and on nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.hpp"

namespace shardcheck {

enum class ModuleKind { embedding, linear, norm };

/// What a module does in its block: `by kv_head` looks for the q of the same block.
enum class ModuleRole {
  token_embedding,
  position_embedding,
  attention_norm,
  q,
  k,
  v,
  qkv,
  q_norm,
  k_norm,
  o,
  attention_post_norm,
  mlp_norm,
  gate,
  up,
  gate_up,
  fc,
  down,
  mlp_post_norm,
  final_norm,
  lm_head
};

/// A run of output rows of a fused weight that is cut on its own: gpt2's c_attn is q | k | v, phi3's gate_up_proj is
/// gate | up.
struct Section {
  ModuleRole role;
  std::int64_t begin, end;  // rows of the canonical weight
};

/// A module that owns weights.
/// Canonical shapes: linear [out, in]; embedding [entries, features]; norm [features]; bias [out] or [features].
struct Module {
  std::string path;  // "layers.3.self_attn.q_proj", "h.3.attn.c_attn", "lm_head"
  ModuleKind kind;
  ModuleRole role;
  std::int64_t layer = -1;  // -1 outside the blocks
  std::int64_t out = 0;     // rows of the weight (norm: features)
  std::int64_t in = 0;      // columns of the weight (norm: 1)
  bool has_bias = false;
  bool stored_transposed = false;  // gpt2's Conv1D keeps [in, out] in the file; Model hands out [out, in]
  std::optional<std::string> tied_to;  // module whose weight this one shares (lm_head -> embed_tokens)
  std::vector<Section> sections;       // empty: one section

  std::string weight() const { return path + ".weight"; }
  std::string bias() const { return path + ".bias"; }
};

/// All weight-owning modules in the order of the forward pass.
std::vector<Module> modules(const Config& config);

/// Suffixes of values that are no module's output, appended to the owning module's path.
inline constexpr std::string_view kValueSuffixes[] = {
    ".q",       ".k",    ".v",   ".gate",  ".up",      ".q_rot",   ".k_rot", ".k_cache",
    ".v_cache", ".attn", ".act", ".resid", ".partial", ".reduced", ".stat",  ".in"};

/// Removes one leading base-model prefix ("model.", "transformer."): it is accepted everywhere and means nothing.
std::string_view strip_prefix(std::string_view path);

/// Paths of the block-level modules: names of containers in this family.
struct BlockPaths {
  std::string layer, attention, mlp;  // "layers.3", "layers.3.self_attn", "layers.3.mlp"
};
BlockPaths block_paths(const Config& config, std::int64_t layer);

/// The name of `candidates` with the smallest edit distance to `name`, for "did you mean" messages.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace shardcheck
