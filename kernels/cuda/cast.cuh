// SPDX-License-Identifier: Apache-2.0
// out = in in another floating dtype, rounded once where it can't be exact.
#pragma once

#include <type_traits>

#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

/// x in storage type Out: its bits where nothing changes, else one rounding of its value.
template <typename Out, typename In>
__device__ inline Out convert(In x) {
  if constexpr (std::is_same_v<In, Out>) {
    return x;
  } else {
    return narrow<Out>(widen(x));
  }
}

template <typename In, typename Out>
struct Convert {
  __device__ Out operator()(In x) const { return convert<Out>(x); }
};

/// Any floating dtype to any other.                                                               in, out [M, D]
void cast(cudaStream_t stream, const Tensor& in, const Tensor& out) {
  if (in.dtype == out.dtype) return copy(stream, in, out);
  with_storage_type(in.dtype, [&]<typename In>(In) {
    with_storage_type(out.dtype, [&]<typename Out>(Out) {
      if constexpr (!std::is_same_v<In, Out>)
        map<In, Out>("cast", stream, in, out, Convert<In, Out>{});
    });
  });
}

}  // namespace shardcheck::gpu
