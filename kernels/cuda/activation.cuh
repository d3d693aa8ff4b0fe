// SPDX-License-Identifier: Apache-2.0
// gate and unary: silu(x) = x sigmoid(x) and GELU's tanh form, with full relative accuracy at both ends.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

/// 1 / (1 + e^-x) by e^-|x|, which never overflows: left of 0 it is e^x / (1 + e^x), where nothing cancels.
template <typename A>
__device__ inline A sigmoid(A x) {
  const A e = std::exp(x < A{0} ? x : -x);
  return (x < A{0} ? e : A{1}) / (A{1} + e);
}

struct Silu {
  template <typename A>
  __device__ A operator()(A x) const {
    return x * sigmoid(x);
  }
};

/// x/2 (1 + tanh(z)) with z = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2 z): nothing cancels at the left.
struct GeluTanh {
  template <typename A>
  __device__ A operator()(A x) const {
    constexpr A kTwiceSlope = static_cast<A>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
    constexpr A kCubic = static_cast<A>(0.044715);
    return x * sigmoid(kTwiceSlope * (x + kCubic * x * x * x));
  }
};

template <typename T, typename Out, typename F>
struct Unary {
  __device__ Out operator()(T x) const { return narrow<Out>(F{}(widen(x))); }
};

template <typename T, typename Out>
struct Gate {
  __device__ Out operator()(T gate, T up) const {
    return narrow<Out>(Silu{}(widen(gate)) * widen(up));
  }
};

/// out = f(x).                                                                                    x, out [M, D]
void unary(cudaStream_t stream, UnaryKind kind, const Tensor& x, const Tensor& out) {
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    switch (kind) {
      case UnaryKind::silu:
        return map<T, Out>("silu", stream, x, out, Unary<T, Out, Silu>{});
      case UnaryKind::gelu_tanh:
        return map<T, Out>("gelu_tanh", stream, x, out, Unary<T, Out, GeluTanh>{});
    }
  });
}

/// out = silu(gate) * up.                                                                         all [M, D]
void gate(cudaStream_t stream, const Tensor& gate, const Tensor& up, const Tensor& out) {
  with_types(gate, out, [&]<typename T, typename Out>(T, Out) {
    map<T, Out>("gate", stream, gate, up, out, Gate<T, Out>{});
  });
}

}  // namespace shardcheck::gpu
