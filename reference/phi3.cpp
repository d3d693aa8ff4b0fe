// SPDX-License-Identifier: Apache-2.0
// Phi-3: Llama's block with q, k and v from one projection and the gated MLP's two halves from another. The sections lie
// one after the other: all q heads, all k heads, all v heads; all of gate, all of up.
// Source: Abdin et al. 2024 (arXiv 2404.14219) and Hugging Face's module tree.
#include "reference/decoder.hpp"

namespace shardcheck::reference {
namespace {

// o_proj(attention(rope(q), rope(k), v))                                               x [M, D] -> [M, D]
template <typename T>
Matrix<T> self_attention(const Call<T>& call, const std::string& path, std::int64_t layer,
                         std::span<const double> frequencies, const Matrix<T>& x) {
  const Module& fused = call.model.module(path + ".qkv_proj");
  const Matrix<T> qkv = call.project(fused.path, x);  // [M, (H + 2 K) * d]
  const Matrix<T> q = section(fused, ModuleRole::q, qkv);
  const Matrix<T> k = section(fused, ModuleRole::k, qkv);
  const Matrix<T> v = section(fused, ModuleRole::v, qkv);
  call.report(fused.path + ".q", q);
  call.report(fused.path + ".k", k);
  call.report(fused.path + ".v", v);
  const Matrix<T> q_rot = call.rotate(path + ".q_rot", frequencies, q);
  const Matrix<T> k_rot = call.rotate(path + ".k_rot", frequencies, k);
  const Matrix<T> attended = call.attend(path, layer, q_rot, k_rot, v);
  Matrix<T> y = call.project(path + ".o_proj", attended);
  call.report(path, y);
  return y;
}

// down_proj(act(gate) * up)                                                            x [M, D] -> [M, D]
template <typename T>
Matrix<T> mlp(const Call<T>& call, const std::string& path, const Matrix<T>& x) {
  const Module& fused = call.model.module(path + ".gate_up_proj");
  const Matrix<T> gate_up = call.project(fused.path, x);  // [M, 2 F]
  const Matrix<T> gate = section(fused, ModuleRole::gate, gate_up);
  const Matrix<T> up = section(fused, ModuleRole::up, gate_up);
  call.report(fused.path + ".gate", gate);
  call.report(fused.path + ".up", up);
  const Matrix<T> activated = call.activate(gate);
  call.report(path + ".activation_fn", activated);
  const Matrix<T> product = multiply(activated, up);
  call.report(path + ".act", product);
  Matrix<T> y = call.project(path + ".down_proj", product);
  call.report(path, y);
  return y;
}

}  // namespace

template <typename T>
Matrix<T> phi3_forward(const Call<T>& call) {
  const Config& config = call.model.config();
  const std::vector<double> frequencies = rope_frequencies(config.rope, config.head_dim);
  Matrix<T> x = call.embed("embed_tokens", call.ids);  // [M, D]
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    const Matrix<T> normed = call.rms_norm(paths.layer + ".input_layernorm", x);
    x = add(x, self_attention<T>(call, paths.attention, layer, frequencies, normed));
    call.report(paths.attention + ".resid", x);
    const Matrix<T> normed_again = call.rms_norm(paths.layer + ".post_attention_layernorm", x);
    x = add(x, mlp(call, paths.mlp, normed_again));
    call.report(paths.layer, x);
  }
  return call.project("lm_head", call.rms_norm("norm", x));
}

std::vector<std::string> phi3_tap_names(const Config& config) {
  std::vector<std::string> names{"embed_tokens"};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    names.push_back(paths.layer + ".input_layernorm");
    for (const char* name : {".qkv_proj", ".qkv_proj.q", ".qkv_proj.k", ".qkv_proj.v", ".q_rot",
                             ".k_rot", ".k_cache", ".v_cache", ".attn", ".o_proj", "", ".resid"}) {
      names.push_back(paths.attention + name);
    }
    names.push_back(paths.layer + ".post_attention_layernorm");
    for (const char* name : {".gate_up_proj", ".gate_up_proj.gate", ".gate_up_proj.up",
                             ".activation_fn", ".act", ".down_proj", ""}) {
      names.push_back(paths.mlp + name);
    }
    names.push_back(paths.layer);
  }
  names.insert(names.end(), {"norm", "lm_head"});
  return names;
}

template Matrix<float> phi3_forward(const Call<float>&);
template Matrix<double> phi3_forward(const Call<double>&);

}  // namespace shardcheck::reference
