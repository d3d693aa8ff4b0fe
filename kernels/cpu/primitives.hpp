// SPDX-License-Identifier: Apache-2.0
// The cpu device's primitives, one .cpp per group. Shapes and dtypes have been checked (kernels/device.cpp) and
// outputs are not empty; the contracts are those of kernels/device.hpp.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "kernels/device.hpp"

namespace shardcheck::cpu {

void linear(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out);
void rms_norm(const Tensor& x, const Tensor& weight, double eps, const Tensor& out);
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& out);
void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim, RopeConvention convention,
          const Tensor& out);
void attention_partial(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads, const AttentionShape& shape,
                       const AttentionState& out);
void attention_merge(const AttentionState& other, const AttentionState& into);
void attention_finish(const AttentionState& state, std::int64_t head_dim, const Tensor& out);
void gate(const Tensor& gate, const Tensor& up, const Tensor& out);
void unary(UnaryKind kind, const Tensor& x, const Tensor& out);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void bias(const Tensor& x, const Tensor& bias, const Tensor& out);
void cast(const Tensor& in, const Tensor& out);
void embedding(const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out);
void argmax(const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index);
void cross_entropy_partial(const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                           const CrossEntropyState& out);
void cross_entropy_merge(const CrossEntropyState& other, const CrossEntropyState& into);
void cross_entropy_finish(const CrossEntropyState& state, const Tensor& loss);
void square_sum(const Tensor& x, const Tensor& out);
void rms_apply(const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features, double eps,
               const Tensor& out);
void copy(const Tensor& in, const Tensor& out);
void poison(const Tensor& out);
void reduce_n(std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first, std::int64_t total,
              const Tensor& out);
/// 64 bits of dtype, shape and every row's bytes. Two tensors that differ in one bit alone always differ.
std::uint64_t hash(const Tensor& tensor);

}  // namespace shardcheck::cpu
