// SPDX-License-Identifier: Apache-2.0
// Llama and its relatives (Mistral, SmolLM2, Qwen2): RMSNorm before each branch, rotary positions, grouped queries,
// a gated MLP. Source: Touvron et al. 2023 (arXiv 2302.13971) and Hugging Face's module tree.
#include "reference/decoder.hpp"

namespace shardcheck::reference {
namespace {

// o_proj(attention(rope(q), rope(k), v))                                               x [M, D] -> [M, D]
template <typename T>
Matrix<T> self_attention(const Call<T>& call, const std::string& path, std::int64_t layer,
                         std::span<const double> frequencies, const Matrix<T>& x) {
  const Matrix<T> q = call.project(path + ".q_proj", x);  // [M, H * d]
  const Matrix<T> k = call.project(path + ".k_proj", x);  // [M, K * d]
  const Matrix<T> v = call.project(path + ".v_proj", x);
  const Matrix<T> q_rot = call.rotate(path + ".q_rot", frequencies, q);
  const Matrix<T> k_rot = call.rotate(path + ".k_rot", frequencies, k);
  const Matrix<T> attended = call.attend(path, layer, q_rot, k_rot, v);
  Matrix<T> y = call.project(path + ".o_proj", attended);
  call.report(path, y);
  return y;
}

}  // namespace

template <typename T>
Matrix<T> llama_forward(const Call<T>& call) {
  const Config& config = call.model.config();
  const std::vector<double> frequencies = rope_frequencies(config.rope, config.head_dim);
  Matrix<T> x = call.embed("embed_tokens", call.ids);  // [M, D]
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    const Matrix<T> normed = call.rms_norm(paths.layer + ".input_layernorm", x);
    x = add(x, self_attention<T>(call, paths.attention, layer, frequencies, normed));
    call.report(paths.attention + ".resid", x);
    const Matrix<T> normed_again = call.rms_norm(paths.layer + ".post_attention_layernorm", x);
    x = add(x, call.gated_mlp(paths.mlp, normed_again));
    call.report(paths.layer, x);
  }
  return call.project("lm_head", call.rms_norm("norm", x));
}

std::vector<std::string> llama_tap_names(const Config& config) {
  std::vector<std::string> names{"embed_tokens"};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    names.push_back(paths.layer + ".input_layernorm");
    for (const char* name : {".q_proj", ".k_proj", ".v_proj", ".q_rot", ".k_rot", ".k_cache",
                             ".v_cache", ".attn", ".o_proj", "", ".resid"}) {
      names.push_back(paths.attention + name);
    }
    names.push_back(paths.layer + ".post_attention_layernorm");
    for (const char* name : {".gate_proj", ".up_proj", ".act_fn", ".act", ".down_proj", ""}) {
      names.push_back(paths.mlp + name);
    }
    names.push_back(paths.layer);
  }
  names.insert(names.end(), {"norm", "lm_head"});
  return names;
}

template Matrix<float> llama_forward(const Call<float>&);
template Matrix<double> llama_forward(const Call<double>&);

}  // namespace shardcheck::reference
