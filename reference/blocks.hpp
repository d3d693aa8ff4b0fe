// SPDX-License-Identifier: Apache-2.0
// The blocks of the transformer as free functions on plain matrices, one .cpp file per block.
// T is float or double; everything inside a block is computed in T. M tokens, N keys, D hidden, d head_dim.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.hpp"
#include "reference/matrix.hpp"

namespace shardcheck::reference {

/// Row ids[m] of the table.                                                                          -> [M, D]
template <typename T>
Matrix<T> embedding(std::span<const std::int64_t> ids, std::int64_t features,
                    const WeightRows<T>& table);

/// y = x W^T + b, a block of W's rows at a time. bias may be empty.             x [M, I]  W [O, I]  b [O] -> [M, O]
template <typename T>
Matrix<T> linear(const Matrix<T>& x, std::int64_t out_features, const WeightRows<T>& weight,
                 std::span<const T> bias);

/// y = x / sqrt(mean(x^2) + eps) * w                                            x [M, D]  w [D]  -> [M, D]
template <typename T>
Matrix<T> rms_norm(const Matrix<T>& x, std::span<const T> weight, double eps);

/// rms_norm of every head by itself, all with the same weight of d features.     x [M, heads * d]  w [d]  -> [M, heads * d]
template <typename T>
Matrix<T> head_norm(const Matrix<T>& x, std::span<const T> weight, double eps);

/// y = (x - mean) / sqrt(var + eps) * w + b, var the mean of squared deviations.         x [M, D]  -> [M, D]
template <typename T>
Matrix<T> layer_norm(const Matrix<T>& x, std::span<const T> weight, std::span<const T> bias,
                     double eps);

/// Angle per position of pair i: theta^(-2i/d), scaled as the config's rope type says. f64.             -> [d / 2]
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t head_dim);

/// Hugging Face's half-split rotation of every head: (a, b) = (x_i, x_{i + d/2}) becomes
/// (a cos - b sin, b cos + a sin), angle = position * frequency_i in f64.        x [M, heads * d]
template <typename T>
Matrix<T> rope(const Matrix<T>& x, std::span<const std::int64_t> positions,
               std::span<const double> frequencies);

/// Causal attention of one head: softmax(scale q k^T) v over keys j with position k_j <= q_i and q_i - k_j < window
/// (0: no window). A row that sees no key is 0.     q [M, d]  k, v [N, d]  positions [M], [N]        -> [M, d]
template <typename T>
Matrix<T> attention_head(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                         std::span<const std::int64_t> q_positions,
                         std::span<const std::int64_t> k_positions, double scale, std::int64_t window);

/// Every q head with the kv head that it reads: kv_heads[h] is the kv head of q head h.
/// Query m stands at q_positions[m], key n at k_positions[n].
///                                   q [M, H * d]  k, v [N, K * d]  kv_heads [H]                      -> [M, H * d]
template <typename T>
Matrix<T> attention(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                    std::span<const std::int64_t> kv_heads, std::span<const std::int64_t> q_positions,
                    std::span<const std::int64_t> k_positions, double scale, std::int64_t window);

/// x / (1 + e^-x)
template <typename T>
Matrix<T> silu(const Matrix<T>& x);
/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
template <typename T>
Matrix<T> gelu_tanh(const Matrix<T>& x);
/// Elementwise a * b and a + b.
template <typename T>
Matrix<T> multiply(const Matrix<T>& a, const Matrix<T>& b);
template <typename T>
Matrix<T> add(const Matrix<T>& a, const Matrix<T>& b);

}  // namespace shardcheck::reference
