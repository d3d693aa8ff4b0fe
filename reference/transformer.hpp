// SPDX-License-Identifier: Apache-2.0
// The unsharded transformer: the truth that everything else is compared with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.hpp"
#include "reference/matrix.hpp"

namespace shardcheck::reference {

/// Called with every named value as it is computed: module path (or path + suffix) and [tokens, features].
/// Containers are reported too ("layers.0", "layers.0.self_attn", "layers.0.mlp", "layers.0.mlp.act_fn").
template <typename T>
using Tap = std::function<void(std::string_view name, const Matrix<T>& value)>;

/// One sequence through the model, with a KV cache. T is double (the truth) or float (the benchmark).
template <typename T>
class Transformer {
 public:
  explicit Transformer(const Model& model);
  ~Transformer();
  Transformer(Transformer&&) noexcept;

  /// Appends tokens to the sequence and returns their logits. Prefill is one call with many ids, decode one call per
  /// id, a chunked prompt several calls.                                                          -> [M, vocab]
  Matrix<T> forward(std::span<const std::int64_t> ids, const Tap<T>& tap = {});

  std::int64_t length() const;  // tokens seen so far
  void reset();                 // forget the sequence

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Every name that forward() reports, in order: what a golden or a candidate may contain.
std::vector<std::string> tap_names(const Config& config);

}  // namespace shardcheck::reference
