// SPDX-License-Identifier: Apache-2.0
#include "sharded/graph.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "model/error.hpp"
#include "model/modules.hpp"

namespace shardcheck {
namespace {

/// Appends nodes; keeps the module tree's names in one place.
class Builder {
 public:
  explicit Builder(const Config& config) : config_(config) {}

  std::string node(std::string op, std::string module, std::vector<std::string> inputs,
                   std::string output, Attributes attributes = {}) {
    graph_.nodes.push_back(
        {std::move(op), std::move(module), std::move(inputs), {output}, std::move(attributes)});
    return output;
  }
  std::string linear(const std::string& module, const std::string& x) {
    return node("linear", module, {x}, module);
  }
  std::string norm(const std::string& module, const std::string& x) {
    const bool rms = config_.family != Family::gpt2;
    return node(rms ? "rms_norm" : "layer_norm", module, {x}, module, {{"eps", config_.norm_eps}});
  }

  /// RMSNorm of every head by itself, with one weight for all of them.
  std::string head_norm(const std::string& module, const std::string& x) {
    return node("head_norm", module, {x}, module,
                {{"eps", config_.norm_eps}, {"head_dim", static_cast<double>(config_.head_dim)}});
  }
  /// Features [begin, end) of a fused module's output, named by what they are.
  std::string section(const std::string& fused, std::string_view name, std::int64_t begin,
                      std::int64_t end) {
    return node("split", fused, {fused}, fmt::format("{}.{}", fused, name),
                {{"begin", static_cast<double>(begin)}, {"end", static_cast<double>(end)}});
  }

  /// Scores of q against the cache, with this step's k and v appended to it first.
  std::string attention(const std::string& path, std::int64_t layer, const std::string& q,
                        const std::string& k, const std::string& v) {
    const double window = static_cast<double>(
        config_.windows[static_cast<std::size_t>(layer)].value_or(0));
    graph_.nodes.push_back(
        {"cache", path, {k, v}, {path + ".k_cache", path + ".v_cache"}, {{"window", window}}});
    const auto head_dim = static_cast<double>(config_.head_dim);
    return node("attention", path, {q, path + ".k_cache", path + ".v_cache"}, path + ".attn",
                {{"head_dim", head_dim},
                 {"scale", 1.0 / std::sqrt(head_dim)},
                 {"window", window},
                 {"num_heads", static_cast<double>(config_.num_heads)},
                 {"num_kv_heads", static_cast<double>(config_.num_kv_heads)}});
  }

  Graph take() { return std::move(graph_); }
  const Config& config() const { return config_; }

 private:
  const Config& config_;
  Graph graph_;
};

std::string rotate(Builder& b, const std::string& attention, const std::string& x,
                   const std::string& suffix) {
  return b.node("rope", attention, {x}, attention + suffix,
                {{"head_dim", static_cast<double>(b.config().head_dim)}});
}

std::string gated_mlp(Builder& b, const std::string& mlp, const std::string& x) {
  const std::string gate = b.linear(mlp + ".gate_proj", x);
  const std::string up = b.linear(mlp + ".up_proj", x);
  const std::string act = b.node("gate", mlp, {gate, up}, mlp + ".act");
  return b.linear(mlp + ".down_proj", act);
}

/// And its relatives; qwen3 normalises every q and k head before it is rotated.
Graph llama(const Config& config) {
  Builder b(config);
  std::string x = b.node("embedding", "embed_tokens", {"ids"}, "embed_tokens");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths at = block_paths(config, layer);
    const std::string normed = b.norm(at.layer + ".input_layernorm", x);
    const std::string q = b.linear(at.attention + ".q_proj", normed);
    const std::string k = b.linear(at.attention + ".k_proj", normed);
    const std::string v = b.linear(at.attention + ".v_proj", normed);
    const bool norms_heads = config.family == Family::qwen3;
    const std::string q_in = norms_heads ? b.head_norm(at.attention + ".q_norm", q) : q;
    const std::string k_in = norms_heads ? b.head_norm(at.attention + ".k_norm", k) : k;
    const std::string q_rot = rotate(b, at.attention, q_in, ".q_rot");
    const std::string k_rot = rotate(b, at.attention, k_in, ".k_rot");
    const std::string attn = b.attention(at.attention, layer, q_rot, k_rot, v);
    const std::string o = b.linear(at.attention + ".o_proj", attn);
    x = b.node("add", at.attention, {x, o}, at.attention + ".resid");
    const std::string normed2 = b.norm(at.layer + ".post_attention_layernorm", x);
    const std::string down = gated_mlp(b, at.mlp, normed2);
    x = b.node("add", at.layer, {x, down}, at.layer);
  }
  b.linear("lm_head", b.norm("norm", x));
  return b.take();
}

/// llama without norms before its branches: q and k are normalised over all heads, the branches' outputs before they
/// are added.
Graph olmo2(const Config& config) {
  Builder b(config);
  std::string x = b.node("embedding", "embed_tokens", {"ids"}, "embed_tokens");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths at = block_paths(config, layer);
    const std::string q = b.linear(at.attention + ".q_proj", x);
    const std::string k = b.linear(at.attention + ".k_proj", x);
    const std::string v = b.linear(at.attention + ".v_proj", x);
    const std::string q_rot = rotate(b, at.attention, b.norm(at.attention + ".q_norm", q), ".q_rot");
    const std::string k_rot = rotate(b, at.attention, b.norm(at.attention + ".k_norm", k), ".k_rot");
    const std::string attn = b.attention(at.attention, layer, q_rot, k_rot, v);
    const std::string o = b.linear(at.attention + ".o_proj", attn);
    const std::string normed = b.norm(at.layer + ".post_attention_layernorm", o);
    x = b.node("add", at.attention, {x, normed}, at.attention + ".resid");
    const std::string down = gated_mlp(b, at.mlp, x);
    const std::string normed2 = b.norm(at.layer + ".post_feedforward_layernorm", down);
    x = b.node("add", at.layer, {x, normed2}, at.layer);
  }
  b.linear("lm_head", b.norm("norm", x));
  return b.take();
}

/// llama with q | k | v and gate | up in one weight each.
Graph phi3(const Config& config) {
  Builder b(config);
  const std::int64_t q_size = config.q_size(), kv_size = config.kv_size();
  const std::int64_t inner = config.intermediate_size;
  std::string x = b.node("embedding", "embed_tokens", {"ids"}, "embed_tokens");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths at = block_paths(config, layer);
    const std::string qkv = b.linear(at.attention + ".qkv_proj",
                                     b.norm(at.layer + ".input_layernorm", x));
    const std::string q = b.section(qkv, "q", 0, q_size);
    const std::string k = b.section(qkv, "k", q_size, q_size + kv_size);
    const std::string v = b.section(qkv, "v", q_size + kv_size, q_size + 2 * kv_size);
    const std::string q_rot = rotate(b, at.attention, q, ".q_rot");
    const std::string k_rot = rotate(b, at.attention, k, ".k_rot");
    const std::string attn = b.attention(at.attention, layer, q_rot, k_rot, v);
    const std::string o = b.linear(at.attention + ".o_proj", attn);
    x = b.node("add", at.attention, {x, o}, at.attention + ".resid");
    const std::string gate_up = b.linear(at.mlp + ".gate_up_proj",
                                         b.norm(at.layer + ".post_attention_layernorm", x));
    const std::string gate = b.section(gate_up, "gate", 0, inner);
    const std::string up = b.section(gate_up, "up", inner, 2 * inner);
    const std::string act = b.node("gate", at.mlp, {gate, up}, at.mlp + ".act");
    const std::string down = b.linear(at.mlp + ".down_proj", act);
    x = b.node("add", at.layer, {x, down}, at.layer);
  }
  b.linear("lm_head", b.norm("norm", x));
  return b.take();
}

Graph gpt2(const Config& config) {
  Builder b(config);
  const std::string tokens = b.node("embedding", "wte", {"ids"}, "wte");
  const std::string positions = b.node("embedding", "wpe", {"positions"}, "wpe", {{"positions", 1.0}});
  std::string x = b.node("add", "wpe", {tokens, positions}, "wpe.resid");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths at = block_paths(config, layer);
    const std::string fused = at.attention + ".c_attn";
    const std::string qkv = b.linear(fused, b.norm(at.layer + ".ln_1", x));
    const std::int64_t q_size = config.q_size(), kv_size = config.kv_size();
    const std::string q = b.section(qkv, "q", 0, q_size);
    const std::string k = b.section(qkv, "k", q_size, q_size + kv_size);
    const std::string v = b.section(qkv, "v", q_size + kv_size, q_size + 2 * kv_size);
    const std::string attn = b.attention(at.attention, layer, q, k, v);
    const std::string o = b.linear(at.attention + ".c_proj", attn);
    x = b.node("add", at.attention, {x, o}, at.attention + ".resid");
    const std::string fc = b.linear(at.mlp + ".c_fc", b.norm(at.layer + ".ln_2", x));
    const std::string act = b.node("unary", at.mlp, {fc}, at.mlp + ".act", {{"kind", 1.0}});
    const std::string down = b.linear(at.mlp + ".c_proj", act);
    x = b.node("add", at.layer, {x, down}, at.layer);
  }
  b.linear("lm_head", b.norm("ln_f", x));
  return b.take();
}

}  // namespace

Graph build_graph(const Config& config) {
  switch (config.family) {
    case Family::llama:
    case Family::qwen3:
      return llama(config);
    case Family::olmo2:
      return olmo2(config);
    case Family::phi3:
      return phi3(config);
    case Family::gpt2:
      return gpt2(config);
  }
  throw InputError("model_type " + config.model_type + " has no graph");
}

}  // namespace shardcheck
