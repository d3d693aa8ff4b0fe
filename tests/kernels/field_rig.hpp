// SPDX-License-Identifier: Apache-2.0
// What the tests of the field device share: a device of a seed with a stream, and matrices of residues on the host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/field/field_device.hpp"
#include "tests/kernels/device_rig.hpp"

namespace shardcheck {

struct Residues {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::uint64_t> values;

  std::uint64_t operator()(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  std::uint64_t& operator()(std::int64_t row, std::int64_t col) {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  bool operator==(const Residues&) const = default;
};

inline Residues random_residues(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Words words(seed);
  Residues result{rows, cols, std::vector<std::uint64_t>(static_cast<std::size_t>(rows * cols))};
  for (std::uint64_t& value : result.values) value = words.next() % field::kPrime;
  return result;
}

inline Residues all(std::int64_t rows, std::int64_t cols, std::uint64_t value) {
  return {rows, cols, std::vector<std::uint64_t>(static_cast<std::size_t>(rows * cols), value)};
}

inline Residues sum(const Residues& a, const Residues& b) {
  Residues out = a;
  for (std::size_t i = 0; i < out.values.size(); ++i)
    out.values[i] = (field::Residue{a.values[i]} + field::Residue{b.values[i]}).bits;
  return out;
}

/// A stretch of global indices and what a rank of a split holds.
using Owned = std::vector<std::pair<std::int64_t, std::int64_t>>;

class FieldRig {
 public:
  explicit FieldRig(std::uint64_t seed = 1) : device_(seed), stream_(device_.make_stream()) {}

  FieldDevice& device() { return device_; }
  Stream& stream() { return *stream_; }

  Tensor make(std::int64_t rows, std::int64_t cols) {
    const Tensor tensor = device_.allocate(*stream_, DType::field, rows, cols);
    device_.poison(*stream_, tensor);
    return tensor;
  }
  Tensor put(const Residues& values) {
    HostTensor host(DType::field, {values.rows, values.cols});
    std::ranges::copy(values.values, host.as_mutable<std::uint64_t>().begin());
    const Tensor tensor = make(values.rows, values.cols);
    device_.upload(*stream_, host, tensor);
    return tensor;
  }
  Tensor put_ids(const std::vector<std::int64_t>& ids) {
    HostTensor host(DType::i64, {1, std::ssize(ids)});
    std::ranges::copy(ids, host.as_mutable<std::int64_t>().begin());
    const Tensor tensor = device_.allocate(*stream_, DType::i64, 1, std::ssize(ids));
    device_.upload(*stream_, host, tensor);
    return tensor;
  }
  Residues get(const Tensor& tensor) {
    const HostTensor host = device_.to_host(*stream_, tensor);
    const auto words = host.as<std::uint64_t>();
    return {tensor.rows, tensor.cols, {words.begin(), words.end()}};
  }

  Residues linear(const Tensor& x, const Tensor& weight, const Tensor* bias = nullptr) {
    const Tensor out = make(x.rows, weight.rows);
    device_.linear(*stream_, x, weight, bias, out);
    return get(out);
  }
  Residues rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5) {
    const Tensor out = make(x.rows, x.cols);
    device_.rms_norm(*stream_, x, weight, eps, out);
    return get(out);
  }
  Residues layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5) {
    const Tensor out = make(x.rows, x.cols);
    device_.layer_norm(*stream_, x, weight, bias, eps, out);
    return get(out);
  }
  Residues unary(UnaryKind kind, const Tensor& x) {
    const Tensor out = make(x.rows, x.cols);
    device_.unary(*stream_, kind, x, out);
    return get(out);
  }
  Residues reduce(const std::vector<Tensor>& terms, const ReduceSpec& spec) {
    const Tensor out = make(terms[0].rows, terms[0].cols);
    device_.reduce_n(*stream_, terms, spec, 0, out.elements(), out);
    return get(out);
  }

  AttentionState attend(const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                        const AttentionShape& shape) {
    const AttentionState state{make(q.rows, std::ssize(heads)), make(q.rows, std::ssize(heads)),
                               make(q.rows, q.cols)};
    device_.attention_partial(*stream_, q, k, v, heads, shape, state);
    return state;
  }
  Residues finish(const AttentionState& state, std::int64_t head_dim) {
    const Tensor out = make(state.acc.rows, state.acc.cols);
    device_.attention_finish(*stream_, state, head_dim, out);
    return get(out);
  }
  CrossEntropyState entropy(const Tensor& logits, const Tensor& targets, const Owned& owned) {
    const CrossEntropyState state{make(logits.rows, 1), make(logits.rows, 1), make(logits.rows, 1)};
    device_.cross_entropy_partial(*stream_, logits, targets, owned, state);
    return state;
  }
  Residues loss(const CrossEntropyState& state) {
    const Tensor out = make(state.max.rows, 1);
    device_.cross_entropy_finish(*stream_, state, out);
    return get(out);
  }

 private:
  FieldDevice device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace shardcheck
