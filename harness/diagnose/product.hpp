// SPDX-License-Identifier: Apache-2.0
// Private to diagnoses: x W^T with any columns of x against any columns of W, as a misplaced shard would multiply them.
#pragma once

#include <string_view>

#include "harness/local/local_op.hpp"

namespace shardcheck {

/// y = x W^T and the norm q_i = sqrt(sum_k (W_ik x_k)^2) that its rounding errors are relative to.    both [rows, out]
struct NormedProduct {
  F64Matrix y, norm;
};

/// x's columns `x_columns` with the columns `w_columns` of the weight (as many), in f64, and in twice its precision where
/// the weights are f64.
NormedProduct product_of(const RoundedWeights& weights, const Module& module, const F64Matrix& x,
                         const Ranges& x_columns, const Ranges& w_columns);

/// Those columns of a matrix, one after the other.
F64Matrix columns_of(const F64Matrix& x, const Ranges& columns);

}  // namespace shardcheck
