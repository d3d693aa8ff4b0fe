// SPDX-License-Identifier: Apache-2.0
// A call of cublasLtMatmul with all that belongs to it, and the product that it must give, element by element.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/api.hpp"
#include "kernels/cuda/check_cublas.hpp"
#include "model/float_bits.hpp"
#include "tests/emu/runtime_rig.hpp"

namespace shardcheck::emu {

inline double value_at(const std::vector<std::byte>& bytes, cudaDataType_t type, std::int64_t i) {
  const auto read = [&](auto zero) {
    std::memcpy(&zero, bytes.data() + static_cast<std::size_t>(i) * sizeof(zero), sizeof(zero));
    return zero;
  };
  switch (type) {
    case CUDA_R_64F:
      return read(double{});
    case CUDA_R_32F:
      return static_cast<double>(read(float{}));
    case CUDA_R_16BF:
      return static_cast<double>(bf16_to_f32(read(std::uint16_t{})));
    case CUDA_R_16F:
      return static_cast<double>(f16_to_f32(read(std::uint16_t{})));
  }
  return 0;
}

inline void put(std::vector<std::byte>& bytes, cudaDataType_t type, std::int64_t i, double value) {
  const auto write = [&](auto element) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(element), &element,
                sizeof(element));
  };
  switch (type) {
    case CUDA_R_64F:
      return write(value);
    case CUDA_R_32F:
      return write(static_cast<float>(value));
    case CUDA_R_16BF:
      return write(f32_to_bf16(static_cast<float>(value)));
    case CUDA_R_16F:
      return write(f32_to_f16(static_cast<float>(value)));
  }
}

inline std::size_t size_of(cudaDataType_t type) {
  return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

/// A column-major matrix on the host and on the device.
struct Matrix {
  cudaDataType_t type;
  std::int64_t rows, cols, ld;
  std::vector<std::byte> host;
  DeviceMatrix<std::byte> device;
  cublasLtMatrixLayout_t layout = nullptr;

  Matrix(cudaStream_t stream, cudaDataType_t of, std::int64_t row_count, std::int64_t col_count,
         std::int64_t gap, std::mt19937& random)
      : type(of),
        rows(row_count),
        cols(col_count),
        ld(row_count + gap),
        host(static_cast<std::size_t>(ld * cols) * size_of(of)),
        device(stream, 1, static_cast<std::int64_t>(host.size())) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < ld * cols; ++i) put(host, type, i, normal(random));
    upload(stream);
    gpu::check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                          static_cast<std::uint64_t>(cols), ld),
               "layout");
  }
  ~Matrix() { cublasLtMatrixLayoutDestroy(layout); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  void upload(cudaStream_t stream) {
    gpu::check(cudaMemcpyAsync(device.data(), host.data(), host.size(), cudaMemcpyHostToDevice, stream),
               "upload");
  }
  void* data() const { return device.data(); }
  double at(std::int64_t row, std::int64_t col) const {
    return value_at(host, type, row + col * ld);
  }
};

struct Types {
  cudaDataType_t in, out;
  cublasComputeType_t compute;
  bool wide() const { return in == CUDA_R_64F; }
};
inline constexpr Types kTypes[] = {{CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F},
                                   {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC},
                                   {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                                   {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
                                   {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F},
                                   {CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F}};

/// A product with all that a call needs; tests change what they are about.
struct Call {
  TestStream stream;
  std::mt19937 random{7};
  Types types;
  bool ta, tb;
  std::int64_t m, n, k;
  Matrix a, b, c, d, bias;
  double alpha = 1, beta = 0;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

  Call(Types of, bool transpose_a, bool transpose_b, std::int64_t rows, std::int64_t cols,
       std::int64_t depth, std::int64_t gap)
      : types(of),
        ta(transpose_a),
        tb(transpose_b),
        m(rows),
        n(cols),
        k(depth),
        a(stream, of.in, ta ? k : m, ta ? m : k, gap, random),
        b(stream, of.in, tb ? n : k, tb ? k : n, gap, random),
        c(stream, of.out, m, n, gap, random),
        d(stream, of.out, m, n, gap, random),
        bias(stream, of.out, m, 1, 0, random) {
    gpu::check(cublasLtCreate(&handle), "create");
    gpu::check(cublasLtMatmulDescCreate(&desc, of.compute, of.wide() ? CUDA_R_64F : CUDA_R_32F),
               "desc");
    gpu::check(cublasLtMatmulPreferenceCreate(&preference), "preference");
    set(CUBLASLT_MATMUL_DESC_TRANSA, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
  }
  ~Call() {
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    gpu::check(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)), "set");
  }
  void add_bias() {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data()));
  }
  cublasStatus_t choose(cublasLtMatmulHeuristicResult_t& chosen) {
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, desc, a.layout, b.layout, c.layout, d.layout, preference, 1, &chosen, &found);
    EXPECT_EQ(found, status == CUBLAS_STATUS_SUCCESS ? 1 : 0);
    return status;
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t* algo = nullptr, void* workspace = nullptr,
                     std::size_t bytes = 0, cudaStream_t on = nullptr) {
    const auto alpha32 = static_cast<float>(alpha), beta32 = static_cast<float>(beta);
    const bool wide = types.wide();
    return cublasLtMatmul(handle, desc, wide ? static_cast<const void*>(&alpha) : &alpha32,
                          a.data(), a.layout, b.data(), b.layout,
                          wide ? static_cast<const void*>(&beta) : &beta32, c.data(), c.layout,
                          d.data(), d.layout, algo, workspace, bytes, on == nullptr ? stream : on);
  }

  /// One element, written down: in the sum's precision, in order of k, rounded once.
  template <typename Sum>
  void expect_element(std::int64_t row, std::int64_t col, bool with_bias) {
    Sum sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const double left = ta ? a.at(i, row) : a.at(row, i), right = tb ? b.at(col, i) : b.at(i, col);
      sum = std::fma(static_cast<Sum>(left), static_cast<Sum>(right), sum);
    }
    Sum value = static_cast<Sum>(alpha) * sum;
    if (beta != 0) value += static_cast<Sum>(beta) * static_cast<Sum>(c.at(row, col));
    if (with_bias) value += static_cast<Sum>(bias.at(row, 0));
    std::vector<std::byte> rounded(8);
    put(rounded, types.out, 0, static_cast<double>(value));
    ASSERT_EQ(value_at(rounded, types.out, 0), value_at(result, types.out, row + col * d.ld))
        << row << ", " << col;
  }
  void expect_product(bool with_bias) {
    result = d.device.values(stream);
    for (std::int64_t col = 0; col < n; ++col) {
      for (std::int64_t row = 0; row < m; ++row) {
        if (types.wide())
          expect_element<double>(row, col, with_bias);
        else
          expect_element<float>(row, col, with_bias);
      }
      for (std::int64_t row = m; row < d.ld; ++row) {  // what lies between the columns is left alone
        ASSERT_EQ(value_at(result, types.out, row + col * d.ld), d.at(row, col));
      }
    }
  }
  std::vector<std::byte> result;
};

}  // namespace shardcheck::emu
