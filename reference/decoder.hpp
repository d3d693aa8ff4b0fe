// SPDX-License-Identifier: Apache-2.0
// What the families' forward passes share: one call's tokens, the weights by name, the taps, the KV cache.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"
#include "reference/blocks.hpp"
#include "reference/transformer.hpp"

namespace shardcheck::reference {

/// Keys and values of one layer for every token so far, as attention reads them: a row a position, all kv heads
/// side by side.                                                                             k, v [length, K * d]
template <typename T>
struct LayerCache {
  std::vector<T> k, v;
};

/// One call of forward(): the tokens that are new, and where they stand.
template <typename T>
struct Call {
  const Model& model;
  std::span<const std::int64_t> ids;        // [M]
  std::span<const std::int64_t> positions;  // [M]
  std::span<LayerCache<T>> caches;          // one per layer
  const Tap<T>& tap;

  void report(std::string_view name, const Matrix<T>& value) const {
    if (tap) tap(name, value);
  }

  std::vector<T> vector(const std::string& tensor) const;
  WeightRows<T> rows_of(const std::string& tensor) const;

  /// The modules of the tree by path. Each reports its output.
  Matrix<T> embed(const std::string& path, std::span<const std::int64_t> indices) const;
  Matrix<T> project(const std::string& path, const Matrix<T>& x) const;
  Matrix<T> rms_norm(const std::string& path, const Matrix<T>& x) const;
  Matrix<T> head_norm(const std::string& path, const Matrix<T>& x) const;
  Matrix<T> layer_norm(const std::string& path, const Matrix<T>& x) const;

  /// Appends k and v to the layer's cache and attends with q to what its window lets it see. Reports "<path>.k_cache",
  /// "<path>.v_cache" (the rows that some query of this call sees) and "<path>.attn".
  ///                                         q [M, H * d]  k, v [M, K * d]                             -> [M, H * d]
  Matrix<T> attend(const std::string& path, std::int64_t layer, const Matrix<T>& q,
                   const Matrix<T>& k, const Matrix<T>& v) const;

  /// rope(x), reported as `name`.                                                        x [M, heads * d]
  Matrix<T> rotate(const std::string& name, std::span<const double> frequencies, const Matrix<T>& x) const;

  /// down_proj(act(gate_proj(x)) * up_proj(x)), reported as "<path>".                    x [M, D] -> [M, D]
  Matrix<T> gated_mlp(const std::string& path, const Matrix<T>& x) const;

  /// The config's activation.
  Matrix<T> activate(const Matrix<T>& x) const;
};

/// The rows of a fused projection that play one role are columns of its output.
template <typename T>
Matrix<T> section(const Module& fused, ModuleRole role, const Matrix<T>& x);

/// The families: ids in, logits out.                                                                 -> [M, vocab]
template <typename T>
Matrix<T> llama_forward(const Call<T>& call);
template <typename T>
Matrix<T> gpt2_forward(const Call<T>& call);
template <typename T>
Matrix<T> qwen3_forward(const Call<T>& call);
template <typename T>
Matrix<T> olmo2_forward(const Call<T>& call);
template <typename T>
Matrix<T> phi3_forward(const Call<T>& call);

/// The names that these report, in order.
std::vector<std::string> llama_tap_names(const Config& config);
std::vector<std::string> gpt2_tap_names(const Config& config);
std::vector<std::string> qwen3_tap_names(const Config& config);
std::vector<std::string> olmo2_tap_names(const Config& config);
std::vector<std::string> phi3_tap_names(const Config& config);

}  // namespace shardcheck::reference
