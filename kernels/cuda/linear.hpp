// SPDX-License-Identifier: Apache-2.0
// Matrix products through cuBLASLt, pinned so that a run repeats bit for bit.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "kernels/cuda/api.hpp"
#include "kernels/device.hpp"

namespace shardcheck::gpu {

/// The products of one device. What decides an element's bits: the extents, the dtypes and whether there is a bias, by
/// way of the algorithm that cuBLASLt proposes for them under fixed preferences, once. Nothing depends on where or how
/// operands lie: those that aren't laid out as the algorithm was chosen for are copied first.
class Linear {
 public:
  /// On the device that is current.
  Linear();
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  /// out = x W^T (+ bias); the bias is added in the accumulate dtype, before the one rounding. No sum over K is split
  /// into parts that are rounded to the storage dtype.                 x [M, K]  weight [N, K]  bias [1, N]  out [M, N]
  /// Precondition: out is not empty, and in x's dtype or its accumulate dtype.
  void run(Device& device, Stream& stream, const Tensor& x, const Tensor& weight,
           const Tensor* bias, const Tensor& out);

 private:
  struct Problem {
    std::int64_t m, n, k;
    DType in, out;
    bool bias;
    auto operator<=>(const Problem&) const = default;
  };
  struct Choice {
    bool possible = false;
    cublasComputeType_t compute{};
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t workspace_bytes = 0;
  };

  Choice choose(const Problem& problem);
  void multiply(Device& device, Stream& stream, const Tensor& x, const Tensor& weight,
                const Tensor* bias, const Tensor& out);
  void add_bias(Device& device, Stream& stream, const Tensor& sum, const Tensor& bias,
                const Tensor& out);

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Problem, Choice> choices_;
};

}  // namespace shardcheck::gpu
