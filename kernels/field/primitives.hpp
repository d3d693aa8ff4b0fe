// SPDX-License-Identifier: Apache-2.0
// The field device's primitives, one .cpp per group. Shapes and dtypes have been checked (kernels/device.cpp) and
// outputs are not empty; the contracts are those of kernels/device.hpp, with random functions in place of exp, log,
// 1 / sqrt, sigmoid and phi. Everything is exact: sums give the same residue in every order and split.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/memory.hpp"
#include "kernels/device.hpp"
#include "kernels/field/hash.hpp"

namespace shardcheck::field {

/// Element (row, col). Precondition: a tensor of dtype field on this device.
inline Residue& element(const Tensor& tensor, std::int64_t row, std::int64_t col) {
  return *cpu::address_as<Residue>(tensor, row, col);
}

/// 1 / a, counting the zeros, of which there is no inverse.
struct Inverter {
  std::int64_t zeros = 0;

  Residue operator()(Residue a) {
    zeros += a.bits == 0 ? 1 : 0;
    return inverse(a);
  }
};

void linear(const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out);
/// out = x w H(rsqrt, sum(x^2) / D + eps): D and eps stand inside the argument, so that a wrong one shows.
void rms_norm(const Tensor& x, const Tensor& weight, Residue eps, Hash& rsqrt, const Tensor& out);
/// rms_norm of some columns of a row of `features`, the same function of the same argument.
void rms_apply(const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features,
               Residue eps, Hash& rsqrt, const Tensor& out);
void square_sum(const Tensor& x, const Tensor& out);
void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Residue eps, Hash& rsqrt,
                const Tensor& out);
void rope(const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
          RopeConvention convention, const Tensor& out);
/// exp(a - b) is H(exp, a) / H(exp, b); the maximum is the largest residue, that of no keys 0, with a sum of 0.
void attention_partial(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                       const AttentionShape& shape, Residue scale, Hash& exp, Inverter& invert,
                       const AttentionState& out);
void attention_merge(const AttentionState& other, Hash& exp, Inverter& invert,
                     const AttentionState& into);
void attention_finish(const AttentionState& state, std::int64_t head_dim, Inverter& invert,
                      const Tensor& out);
void gate(const Tensor& gate, const Tensor& up, Hash& sigmoid, const Tensor& out);
/// out = x H(f, x): f is sigmoid for silu, phi for gelu; zero stays zero.
void unary(const Tensor& x, Hash& f, const Tensor& out);
void add(const Tensor& a, const Tensor& b, const Tensor& out);
void bias(const Tensor& x, const Tensor& bias, const Tensor& out);
void embedding(const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out);
void reduce_n(std::span<const Tensor> terms, ReduceOp op, const Tensor& out);
/// A row without columns gives 0 and -1; the merge of several ranks' rows must pass over -1.
void argmax(const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index);
void cross_entropy_partial(const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                           Hash& exp, Inverter& invert, const CrossEntropyState& out);
void cross_entropy_merge(const CrossEntropyState& other, Hash& exp, Inverter& invert,
                         const CrossEntropyState& into);
/// loss = H(log, sum H(exp, max)) - target: the sum of exponentials without its shift is the same for every maximum.
void cross_entropy_finish(const CrossEntropyState& state, Hash& exp, Hash& log, const Tensor& loss);

}  // namespace shardcheck::field
