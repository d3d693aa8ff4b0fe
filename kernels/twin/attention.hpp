// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/twin/answer.hpp"

namespace shardcheck::twin {

/// Does query row i see key row j? Causal by position, and inside the window where there is one.
inline bool sees(const AttentionShape& shape, std::int64_t i, std::int64_t j) {
  const std::int64_t distance = shape.q_first + i - shape.k_first - j;
  return distance >= 0 && (shape.window == 0 || distance < shape.window);
}

/// Per query row and head: softmax over the keys that it sees of scale q k^T, times v.
///                                         q, answer [M, heads * d]  k, v [N, kv heads * d]
/// With p the weights, A = sum_j p_j |v_j| and S keys seen, b is
///   u_out |y| + half an ulp of underflow
///   + u_acc A (4 + 2 scale sqrt(d) max_j ||q * k_j||_2 + sqrt(S) + max_j |score_j|)
///   + min_normal sum_j |v_j|                         weights that vanish
///   + u_storage sqrt(sum_j (p_j v_j)^2)              where the device rounds weights to the storage dtype
inline Answer attention(const Matrix& q, const Matrix& k, const Matrix& v, HeadMap heads,
                        const AttentionShape& shape, DType storage, const Arithmetic& arithmetic) {
  const std::int64_t d = shape.head_dim;
  const double u_acc = accumulator_roundoff(arithmetic);
  const double u_weights = arithmetic.rounds_softmax_weights ? unit_roundoff(storage) : 0;
  Answer answer;
  for (std::int64_t i = 0; i < q.rows; ++i) {
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const std::int64_t q0 = static_cast<std::int64_t>(h) * d, k0 = heads[h] * d;
      std::vector<std::int64_t> seen;
      for (std::int64_t j = 0; j < k.rows; ++j) {
        if (sees(shape, i, j)) seen.push_back(j);
      }
      std::vector<double> weight;
      double highest = -std::numeric_limits<double>::infinity(), largest_score = 0,
             largest_products = 0, sum = 0;
      for (const std::int64_t j : seen) {
        double score = 0, squares = 0;
        for (std::int64_t e = 0; e < d; ++e) {
          const double product = q(i, q0 + e) * k(j, k0 + e);
          score += product;
          squares += product * product;
        }
        weight.push_back(score *= shape.scale);
        highest = std::max(highest, score);
        largest_score = std::max(largest_score, std::abs(score));
        largest_products = std::max(largest_products, std::sqrt(squares));
      }
      for (double& w : weight) sum += w = std::exp(w - highest);
      const double score_terms = 2 * shape.scale * std::sqrt(static_cast<double>(d)) * largest_products;
      const double per_magnitude = u_acc *
                                   (4 + score_terms + std::sqrt(static_cast<double>(seen.size())) +
                                    largest_score);
      for (std::int64_t e = 0; e < d; ++e) {
        double y = 0, magnitude = 0, squares = 0, all = 0;
        for (std::size_t at = 0; at < seen.size(); ++at) {
          const double x = v(seen[at], k0 + e), term = weight[at] / sum * x;
          y += term;
          magnitude += std::abs(term);
          squares += term * term;
          all += std::abs(x);
        }
        answer.add(y, unit_roundoff(storage) * std::abs(y) + per_magnitude * magnitude +
                          u_weights * std::sqrt(squares) + smallest_normal(arithmetic) * all +
                          half_min_subnormal(storage));
      }
    }
  }
  return answer;
}

}  // namespace shardcheck::twin
