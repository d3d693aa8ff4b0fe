// SPDX-License-Identifier: Apache-2.0
// GPT-2: LayerNorm before each branch, learned positions, q, k and v from one fused projection, biases everywhere.
// Source: Radford et al. 2019 and Hugging Face's module tree.
#include "reference/decoder.hpp"

namespace shardcheck::reference {
namespace {

// c_proj(attention(q, k, v))                                                           x [M, D] -> [M, D]
template <typename T>
Matrix<T> self_attention(const Call<T>& call, const std::string& path, std::int64_t layer,
                         const Matrix<T>& x) {
  const Module& fused = call.model.module(path + ".c_attn");
  const Matrix<T> qkv = call.project(fused.path, x);  // [M, 3 D]
  const Matrix<T> q = section(fused, ModuleRole::q, qkv);
  const Matrix<T> k = section(fused, ModuleRole::k, qkv);
  const Matrix<T> v = section(fused, ModuleRole::v, qkv);
  call.report(fused.path + ".q", q);
  call.report(fused.path + ".k", k);
  call.report(fused.path + ".v", v);
  const Matrix<T> attended = call.attend(path, layer, q, k, v);
  Matrix<T> y = call.project(path + ".c_proj", attended);
  call.report(path, y);
  return y;
}

// c_proj(act(c_fc(x)))                                                                 x [M, D] -> [M, D]
template <typename T>
Matrix<T> mlp(const Call<T>& call, const std::string& path, const Matrix<T>& x) {
  const Matrix<T> activated = call.activate(call.project(path + ".c_fc", x));  // [M, F]
  call.report(path + ".act", activated);
  Matrix<T> y = call.project(path + ".c_proj", activated);
  call.report(path, y);
  return y;
}

}  // namespace

template <typename T>
Matrix<T> gpt2_forward(const Call<T>& call) {
  const Config& config = call.model.config();
  const Matrix<T> tokens = call.embed("wte", call.ids);           // [M, D]
  const Matrix<T> positions = call.embed("wpe", call.positions);  // [M, D]
  Matrix<T> x = add(tokens, positions);
  call.report("wpe.resid", x);
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    const Matrix<T> normed = call.layer_norm(paths.layer + ".ln_1", x);
    x = add(x, self_attention(call, paths.attention, layer, normed));
    call.report(paths.attention + ".resid", x);
    const Matrix<T> normed_again = call.layer_norm(paths.layer + ".ln_2", x);
    x = add(x, mlp(call, paths.mlp, normed_again));
    call.report(paths.layer, x);
  }
  return call.project("lm_head", call.layer_norm("ln_f", x));
}

std::vector<std::string> gpt2_tap_names(const Config& config) {
  std::vector<std::string> names{"wte", "wpe", "wpe.resid"};
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const BlockPaths paths = block_paths(config, layer);
    names.push_back(paths.layer + ".ln_1");
    for (const char* name : {".c_attn", ".c_attn.q", ".c_attn.k", ".c_attn.v", ".k_cache",
                             ".v_cache", ".attn", ".c_proj", "", ".resid"}) {
      names.push_back(paths.attention + name);
    }
    names.push_back(paths.layer + ".ln_2");
    for (const char* name : {".c_fc", ".act", ".c_proj", ""}) names.push_back(paths.mlp + name);
    names.push_back(paths.layer);
  }
  names.insert(names.end(), {"ln_f", "lm_head"});
  return names;
}

template Matrix<float> gpt2_forward(const Call<float>&);
template Matrix<double> gpt2_forward(const Call<double>&);

}  // namespace shardcheck::reference
