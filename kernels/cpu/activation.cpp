// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/exponential.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

template <typename A>
A silu(A x) {
  return x * sigmoid(x);
}

/// x/2 (1 + tanh(z)) with z = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2 z): nothing cancels at the left.
template <typename A>
A gelu_tanh(A x) {
  constexpr A kTwiceSlope = static_cast<A>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return x * sigmoid(kTwiceSlope * (x + static_cast<A>(0.044715) * x * x * x));
}

template <typename A, typename Function>
void apply(const Tensor& x, const Tensor& out, Function f) {
  Scratch<A> scratch(kBlock), result(kBlock);
  for_each_block(x, [&](std::int64_t row, std::int64_t col, std::int64_t n) {
    const A* in = read(x, row, col, n, scratch.data());
    A* y = result.data();
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(in[i]);
    store(y, out, row, col, n);
  });
}

}  // namespace

void unary(UnaryKind kind, const Tensor& x, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    switch (kind) {
      case UnaryKind::silu: return apply<A>(x, out, [](A v) { return silu(v); });
      case UnaryKind::gelu_tanh: return apply<A>(x, out, [](A v) { return gelu_tanh(v); });
    }
  });
}

void gate(const Tensor& gate, const Tensor& up, const Tensor& out) {
  with_compute_type(gate.dtype, [&](auto type) {
    using A = decltype(type);
    Scratch<A> gate_scratch(kBlock), up_scratch(kBlock), result(kBlock);
    for_each_block(out, [&](std::int64_t row, std::int64_t col, std::int64_t n) {
      const A* g = read(gate, row, col, n, gate_scratch.data());
      const A* u = read(up, row, col, n, up_scratch.data());
      A* y = result.data();
      for (std::int64_t i = 0; i < n; ++i) y[i] = silu(g[i]) * u[i];
      store(y, out, row, col, n);
    });
  });
}

}  // namespace shardcheck::cpu
