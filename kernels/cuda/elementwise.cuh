// SPDX-License-Identifier: Apache-2.0
// add and bias: one addition in the accumulate type, one rounding.
#pragma once

#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

template <typename T, typename Out>
struct Add {
  __device__ Out operator()(T a, T b) const { return narrow<Out>(widen(a) + widen(b)); }
};

/// out = a + b.                                                                                     a, b, out [M, D]
void add(cudaStream_t stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_types(a, out, [&]<typename T, typename Out>(T, Out) {
    map<T, Out>("add", stream, a, b, out, Add<T, Out>{});
  });
}

/// out = x + bias of every row.                                                            x, out [M, D]  bias [1, D]
void bias(cudaStream_t stream, const Tensor& x, const Tensor& bias, const Tensor& out) {
  Tensor repeated = bias;  // the same row again and again: no step from one to the next
  repeated.rows = x.rows;
  repeated.row_stride = 0;
  with_types(x, out, [&]<typename T, typename Out>(T, Out) {
    map<T, Out>("bias", stream, x, repeated, out, Add<T, Out>{});
  });
}

}  // namespace shardcheck::gpu
