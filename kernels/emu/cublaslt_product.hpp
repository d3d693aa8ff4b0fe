// SPDX-License-Identifier: Apache-2.0
// The arithmetic behind cublasLtMatmul.
#pragma once

#include <cstdint>

#include "kernels/emu/cublaslt_api.hpp"

namespace shardcheck::emu {

/// A column-major matrix in device memory.
struct ColumnMajor {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;
  std::int64_t ld = 0;
};

/// D = alpha op(A) op(B) + beta C (+ bias of every row), summed in order of k in f32, or f64 where D is f64, and
/// rounded once. C isn't read where beta is 0; a bias has D's type.
///                                                        op(A) [m, k]  op(B) [k, n]  C, D [m, n]  bias [m]
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  ColumnMajor a, b, c, d;  // d is written
  const void* bias = nullptr;
};

void compute(const Product& product);

std::int64_t element_bytes(cudaDataType_t type);

}  // namespace shardcheck::emu
