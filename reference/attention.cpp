// SPDX-License-Identifier: Apache-2.0
// Causal softmax attention with an optional window; several q heads may share a kv head (MQA, GQA).
// Sources: Vaswani et al. 2017 (arXiv 1706.03762), Ainslie et al. 2023 (arXiv 2305.13245).
#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/blocks.hpp"
#include "reference/eigen_map.hpp"

namespace shardcheck::reference {
namespace {

bool sees(std::int64_t query, std::int64_t key, std::int64_t window) {
  return key <= query && (window == 0 || query - key < window);
}

// Scores of one query become softmax weights; keys that it doesn't see get weight 0.
template <typename T>
void softmax_row(std::span<T> scores, std::int64_t query, std::span<const std::int64_t> keys,
                 std::int64_t window) {
  bool any = false;
  T largest = T(0);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    if (!sees(query, keys[n], window)) continue;
    largest = any ? std::max(largest, scores[n]) : scores[n];
    any = true;
  }
  T sum = T(0);
  for (std::size_t n = 0; n < keys.size(); ++n) {
    // Minus the largest score: no exponential overflows and the largest weight before division is 1.
    scores[n] = sees(query, keys[n], window) ? std::exp(scores[n] - largest) : T(0);
    sum += scores[n];
  }
  if (!any) return;
  for (T& weight : scores) weight /= sum;
}

}  // namespace

template <typename T>
Matrix<T> attention_head(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                         std::span<const std::int64_t> q_positions,
                         std::span<const std::int64_t> k_positions, double scale, std::int64_t window) {
  Matrix<T> weights(q.rows(), k.rows());  // [M, N]
  eigen(weights).noalias() = eigen(q) * eigen(k).transpose();
  eigen(weights) *= static_cast<T>(scale);
  for (std::int64_t m = 0; m < q.rows(); ++m) {
    softmax_row(weights.row(m), q_positions[static_cast<std::size_t>(m)], k_positions, window);
  }
  Matrix<T> y(q.rows(), v.cols());  // [M, d]
  eigen(y).noalias() = eigen(std::as_const(weights)) * eigen(v);
  return y;
}

template <typename T>
Matrix<T> attention(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v,
                    std::span<const std::int64_t> kv_heads, std::span<const std::int64_t> q_positions,
                    std::span<const std::int64_t> k_positions, double scale, std::int64_t window) {
  Matrix<T> y(q.rows(), q.cols());
  const auto heads = static_cast<std::int64_t>(kv_heads.size());
  if (heads == 0) return y;
  const std::int64_t head_dim = q.cols() / heads;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int64_t kv = kv_heads[static_cast<std::size_t>(h)];
    const Matrix<T> head = attention_head(
        columns(q, h * head_dim, head_dim), columns(k, kv * head_dim, head_dim),
        columns(v, kv * head_dim, head_dim), q_positions, k_positions, scale, window);
    eigen(y).middleCols(h * head_dim, head_dim) = eigen(head);
  }
  return y;
}

template Matrix<float> attention_head(const Matrix<float>&, const Matrix<float>&,
                                      const Matrix<float>&, std::span<const std::int64_t>,
                                      std::span<const std::int64_t>, double, std::int64_t);
template Matrix<double> attention_head(const Matrix<double>&, const Matrix<double>&,
                                       const Matrix<double>&, std::span<const std::int64_t>,
                                       std::span<const std::int64_t>, double, std::int64_t);
template Matrix<float> attention(const Matrix<float>&, const Matrix<float>&, const Matrix<float>&,
                                 std::span<const std::int64_t>, std::span<const std::int64_t>,
                                 std::span<const std::int64_t>, double, std::int64_t);
template Matrix<double> attention(const Matrix<double>&, const Matrix<double>&, const Matrix<double>&,
                                  std::span<const std::int64_t>, std::span<const std::int64_t>,
                                  std::span<const std::int64_t>, double, std::int64_t);

}  // namespace shardcheck::reference
