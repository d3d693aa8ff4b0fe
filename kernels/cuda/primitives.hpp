// SPDX-License-Identifier: Apache-2.0
// The GPU device's primitives: host code that launches kernels. One .cuh per op holds its kernels and its launcher; the
// .cu files gather them into few translation units. Shapes and dtypes have been checked (kernels/device.cpp) and outputs
// are not empty; the contracts are those of kernels/device.hpp. Outputs are in the dtype of their first operand or in
// its accumulate dtype (embedding and cast: any), which the device sees to.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/api.hpp"
#include "kernels/device.hpp"

namespace shardcheck::gpu {

// movement.cu
void copy(cudaStream_t, const Tensor& in, const Tensor& out);
void poison(cudaStream_t, const Tensor& out);
void hash(cudaStream_t, const Tensor& tensor, const Tensor& slots, std::int64_t index);
void embedding(cudaStream_t, const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out);
void cast(cudaStream_t, const Tensor& in, const Tensor& out);

// rows.cu
void add(cudaStream_t, const Tensor& a, const Tensor& b, const Tensor& out);
void bias(cudaStream_t, const Tensor& x, const Tensor& bias, const Tensor& out);
void gate(cudaStream_t, const Tensor& gate, const Tensor& up, const Tensor& out);
void unary(cudaStream_t, UnaryKind kind, const Tensor& x, const Tensor& out);
void rms_norm(cudaStream_t, const Tensor& x, const Tensor& weight, double eps, const Tensor& out);
void square_sum(cudaStream_t, const Tensor& x, const Tensor& out);
void rms_apply(cudaStream_t, const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features,
               double eps, const Tensor& out);
void layer_norm(cudaStream_t, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                const Tensor& out);
void add_rms_norm(cudaStream_t, const Tensor& a, const Tensor& b, const Tensor& weight, double eps,
                  const Tensor& sum, const Tensor& out);
void rope(cudaStream_t, const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
          RopeConvention convention, const Tensor& out);

// attention.cu
/// Many queries: tiles of queries against tiles of keys, online softmax. Few queries: the keys are cut into stretches
/// whose states go to `workspace`; a second kernel merges them in order of position. What the caller must allocate, in
/// the dtype of out, used on this stream alone: for n = attention_splits(queries, keys, head_dim) > 1
///   max, sum [n * M, heads]   acc [n * M, heads * head_dim], contiguous; nothing (empty tensors) for n = 1.
/// `heads` is read before the call returns.
struct AttentionWorkspace {
  Tensor max, sum, acc;
};
/// Stretches that attention_partial cuts the keys into; depends on these extents alone. At least 1.
std::int64_t attention_splits(std::int64_t queries, std::int64_t keys, std::int64_t head_dim);
void attention_partial(cudaStream_t, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                       const AttentionShape& shape, const AttentionWorkspace& workspace, const AttentionState& out);
void attention_merge(cudaStream_t, const AttentionState& other, const AttentionState& into);
void attention_finish(cudaStream_t, const AttentionState& state, std::int64_t head_dim, const Tensor& out);

// reductions.cu
/// Throws DeviceError for more than 128 terms.
void reduce_n(cudaStream_t, std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first,
              std::int64_t total, const Tensor& out);
void argmax(cudaStream_t, const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index);
void cross_entropy_partial(cudaStream_t, const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                           const CrossEntropyState& out);
void cross_entropy_merge(cudaStream_t, const CrossEntropyState& other, const CrossEntropyState& into);
void cross_entropy_finish(cudaStream_t, const CrossEntropyState& state, const Tensor& loss);

}  // namespace shardcheck::gpu
