// SPDX-License-Identifier: Apache-2.0
// Private to the judge: y = x W^T + b in f64 for everything that one weight was multiplied with, in all cells of a run,
// a block of W's rows at a time, so that the weight is read, rounded and widened once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge_comparison.hpp"
#include "harness/judge_view.hpp"
#include "harness/local/weights.hpp"
#include "kernels/device.hpp"

namespace shardcheck {

/// b = per_result |y| + per_norm q + per_partial sqrt(sum_r s_r^2) + constant, where q_i = sqrt(sum_k (W_ik x_k)^2) is
/// the norm that a sum's rounding errors are relative to, and s_r the parts of y that ranks sum up.
struct ProductBudget {
  double per_result = 0.0, per_norm = 0.0, per_partial = 0.0, constant = 0.0;
};

/// Of an output in dtype `out` summed over `terms` products on a device with this arithmetic; no parts yet.
ProductBudget product_budget(DType out, std::int64_t terms, const Arithmetic& arithmetic);

/// One input as some ranks saw it, and the outputs that must follow from it.
struct ProductRequest {
  TapReader input;
  std::vector<int> peers;     // of the reader: whose parts make up x
  std::vector<Ranges> parts;  // of W's columns; y is the sum of the parts
  bool adds_bias = false;
  ProductBudget budget;
  std::vector<Comparison> outputs;

  std::int64_t rows() const { return input.rows(); }
};

/// Judges all outputs of all requests of one weight.
void judge_products(const RoundedWeights& weights, const std::string& module,
                    std::vector<ProductRequest>& requests);

}  // namespace shardcheck
