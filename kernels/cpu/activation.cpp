// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include "kernels/cpu/block.hpp"
#include "kernels/cpu/exponential.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck::cpu {
namespace {

template <typename A>
Vector<A> silu(const Vector<A>& x) {
  return x * sigmoid<A>(x);
}

/// x/2 (1 + tanh(z)) with z = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2 z): nothing cancels at the left.
template <typename A>
Vector<A> gelu_tanh(const Vector<A>& x) {
  constexpr A kTwiceSlope = static_cast<A>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  constexpr A kCubic = static_cast<A>(0.044715);
  return x * sigmoid<A>(kTwiceSlope * (x + kCubic * x * x * x));
}

template <typename A, typename Function>
void apply(const Tensor& x, const Tensor& out, Function f) {
  Scratch<A> scratch(kBlock), result(kBlock);
  for_each_block(x, [&](std::int64_t row, std::int64_t col, std::int64_t n) {
    map_lanes(read(x, row, col, n, scratch.data()), n, result.data(), f);
    store(result.data(), out, row, col, n);
  });
}

}  // namespace

void unary(UnaryKind kind, const Tensor& x, const Tensor& out) {
  with_compute_type(x.dtype, [&](auto type) {
    using A = decltype(type);
    switch (kind) {
      case UnaryKind::silu: return apply<A>(x, out, silu<A>);
      case UnaryKind::gelu_tanh: return apply<A>(x, out, gelu_tanh<A>);
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
      map_lanes(g, n, y, silu<A>);
      for (std::int64_t i = 0; i < n; ++i) y[i] *= u[i];
      store(y, out, row, col, n);
    });
  });
}

}  // namespace shardcheck::cpu
