// SPDX-License-Identifier: Apache-2.0
#include "reference/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace shardcheck::reference {

template <typename T>
std::vector<T> Call<T>::vector(const std::string& tensor) const {
  const std::int64_t size = model.extents(tensor).rows;
  std::vector<T> values(static_cast<std::size_t>(size));
  model.read_rows(tensor, 0, size, std::span<T>(values));
  return values;
}

template <typename T>
WeightRows<T> Call<T>::rows_of(const std::string& tensor) const {
  return [this, tensor](std::int64_t begin, std::int64_t end, std::span<T> out) {
    model.read_rows(tensor, begin, end, out);
  };
}

template <typename T>
Matrix<T> Call<T>::embed(const std::string& path, std::span<const std::int64_t> indices) const {
  const Module& module = model.module(path);
  Matrix<T> y = embedding<T>(indices, module.in, rows_of(module.weight()));
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::project(const std::string& path, const Matrix<T>& x) const {
  const Module& module = model.module(path);
  const std::vector<T> bias = module.has_bias ? vector(module.bias()) : std::vector<T>{};
  Matrix<T> y = linear<T>(x, module.out, rows_of(module.weight()), bias);
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::rms_norm(const std::string& path, const Matrix<T>& x) const {
  Matrix<T> y = reference::rms_norm<T>(x, vector(path + ".weight"), model.config().norm_eps);
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::head_norm(const std::string& path, const Matrix<T>& x) const {
  Matrix<T> y = reference::head_norm<T>(x, vector(path + ".weight"), model.config().norm_eps);
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::layer_norm(const std::string& path, const Matrix<T>& x) const {
  Matrix<T> y = reference::layer_norm<T>(x, vector(path + ".weight"), vector(path + ".bias"),
                                         model.config().norm_eps);
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::attend(const std::string& path, std::int64_t layer, const Matrix<T>& q,
                          const Matrix<T>& k, const Matrix<T>& v) const {
  const Config& config = model.config();
  LayerCache<T>& cache = caches[static_cast<std::size_t>(layer)];
  cache.k.insert(cache.k.end(), k.values().begin(), k.values().end());
  cache.v.insert(cache.v.end(), v.values().begin(), v.values().end());

  // The first query sees furthest back. Keys before its window are seen by nobody any more.
  const std::int64_t window = config.windows[static_cast<std::size_t>(layer)].value_or(0);
  const std::int64_t first_query = positions.empty() ? 0 : positions.front();
  const std::int64_t length = positions.empty() ? 0 : positions.back() + 1;
  const std::int64_t first = window == 0
                                 ? 0
                                 : std::clamp<std::int64_t>(first_query - window + 1, 0, length);
  const auto visible = [&](const std::vector<T>& rows) {
    const std::int64_t width = config.kv_size();
    return Matrix<T>(length - first, width,
                     {rows.data() + first * width, rows.data() + length * width});
  };
  const Matrix<T> keys = visible(cache.k);
  const Matrix<T> values = visible(cache.v);
  report(path + ".k_cache", keys);
  report(path + ".v_cache", values);

  std::vector<std::int64_t> key_positions(static_cast<std::size_t>(keys.rows()));
  std::iota(key_positions.begin(), key_positions.end(), first);
  // Grouped queries: q heads h = 0, 1, ... share the kv heads in equal runs.
  std::vector<std::int64_t> kv_heads(static_cast<std::size_t>(config.num_heads));
  for (std::int64_t h = 0; h < config.num_heads; ++h) {
    kv_heads[static_cast<std::size_t>(h)] = h * config.num_kv_heads / config.num_heads;
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim));
  Matrix<T> y = attention<T>(q, keys, values, kv_heads, positions, key_positions, scale, window);
  report(path + ".attn", y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::rotate(const std::string& name, std::span<const double> frequencies,
                          const Matrix<T>& x) const {
  Matrix<T> y = rope(x, positions, frequencies);
  report(name, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::gated_mlp(const std::string& path, const Matrix<T>& x) const {
  const Matrix<T> gate = project(path + ".gate_proj", x);  // [M, F]
  const Matrix<T> up = project(path + ".up_proj", x);      // [M, F]
  const Matrix<T> activated = activate(gate);
  report(path + ".act_fn", activated);
  const Matrix<T> product = multiply(activated, up);
  report(path + ".act", product);
  Matrix<T> y = project(path + ".down_proj", product);
  report(path, y);
  return y;
}

template <typename T>
Matrix<T> Call<T>::activate(const Matrix<T>& x) const {
  switch (model.config().activation) {
    case Activation::silu:
      return silu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
  }
  throw std::logic_error("an activation without a block");
}

template <typename T>
Matrix<T> section(const Module& fused, ModuleRole role, const Matrix<T>& x) {
  for (const Section& s : fused.sections) {
    if (s.role == role) return columns(x, s.begin, s.end - s.begin);
  }
  throw std::logic_error(fused.path + ": has no such section");
}

template struct Call<float>;
template struct Call<double>;
template Matrix<float> section(const Module&, ModuleRole, const Matrix<float>&);
template Matrix<double> section(const Module&, ModuleRole, const Matrix<double>&);

}  // namespace shardcheck::reference
