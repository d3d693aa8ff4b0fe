// SPDX-License-Identifier: Apache-2.0
// Element by element: activations, sums, and the rows of a table.
#include <algorithm>

#include "kernels/cpu/primitives.hpp"
#include "kernels/field/owned.hpp"
#include "kernels/field/primitives.hpp"

namespace shardcheck::field {
namespace {

/// out(m, i) = value(m, i).
template <typename Value>
void fill(const Tensor& out, Value value) {
  for (std::int64_t m = 0; m < out.rows; ++m) {
    for (std::int64_t i = 0; i < out.cols; ++i) element(out, m, i) = value(m, i);
  }
}

}  // namespace

void gate(const Tensor& gate, const Tensor& up, Hash& sigmoid, const Tensor& out) {
  fill(out, [&](std::int64_t m, std::int64_t i) {
    const Residue x = element(gate, m, i);
    return x * sigmoid(x) * element(up, m, i);
  });
}

void unary(const Tensor& x, Hash& f, const Tensor& out) {
  fill(out, [&](std::int64_t m, std::int64_t i) { return element(x, m, i) * f(element(x, m, i)); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  fill(out, [&](std::int64_t m, std::int64_t i) { return element(a, m, i) + element(b, m, i); });
}

void bias(const Tensor& x, const Tensor& bias, const Tensor& out) {
  fill(out, [&](std::int64_t m, std::int64_t i) { return element(x, m, i) + element(bias, 0, i); });
}

void embedding(const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out) {
  for (std::int64_t m = 0; m < out.rows; ++m) {
    const Tensor to = out.row_range(m, m + 1);
    const std::int64_t row = local_index(*cpu::address_as<const std::int64_t>(ids, 0, m), owned);
    if (row >= 0) {
      cpu::copy(table.row_range(row, row + 1), to);
    } else {
      fill(to, [](std::int64_t, std::int64_t) { return Residue{}; });
    }
  }
}

void reduce_n(std::span<const Tensor> terms, ReduceOp op, const Tensor& out) {
  fill(out, [&](std::int64_t m, std::int64_t i) {
    Residue result = element(terms[0], m, i);
    for (const Tensor& term : terms.subspan(1)) {
      const Residue x = element(term, m, i);
      result = op == ReduceOp::sum ? result + x : std::max(result, x);
    }
    return result;
  });
}

}  // namespace shardcheck::field
