// SPDX-License-Identifier: Apache-2.0
// Private to the judge: x W^T with a rounding error far below one f64 unit, for candidates that are themselves f64. A
// plain f64 product errs as much as the candidate does, and then the judge measures its own error.
#pragma once

#include <cstdint>

namespace shardcheck {

/// y[m * y_stride + n] = sum_k x[m * x_stride + k] w[n * w_stride + k], k < terms, rounded once but for a small part of
/// a plain product's error, 2^-((53 - log2 terms) / 2): each factor is split in a high half, whose products add up
/// exactly, and a low half of that much less weight. Three plain products.
/// NaN and infinity give NaN or infinity.                                     x [rows, terms]  w [cols, terms]
/// Source: Ozaki, Ogita, Oishi, Rump 2012, "Error-free transformations of matrix multiplication by using fast routines
/// of matrix multiplication and its applications".
void accurate_product(const double* x, std::int64_t x_stride, std::int64_t rows, const double* w,
                      std::int64_t w_stride, std::int64_t cols, std::int64_t terms, double* y,
                      std::int64_t y_stride);

}  // namespace shardcheck
