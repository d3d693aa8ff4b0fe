// SPDX-License-Identifier: Apache-2.0
// out = in, bit for bit, from any layout to any other.
#pragma once

#include "kernels/cuda/map.cuh"

namespace shardcheck::gpu {

/// Calls body(Word{}) with an unsigned integer as wide as one element.
template <typename Body>
void with_word(DType dtype, Body&& body) {
  switch (element_size(dtype)) {
    case 2:
      return body(std::uint16_t{});
    case 4:
      return body(std::uint32_t{});
    default:
      return body(std::uint64_t{});
  }
}

struct Same {
  template <typename T>
  __device__ T operator()(T x) const {
    return x;
  }
};

/// Any scalar dtype, the same on both sides.                                                      in, out [M, D]
void copy(cudaStream_t stream, const Tensor& in, const Tensor& out) {
  with_word(in.dtype, [&]<typename Word>(Word) { map<Word, Word>("copy", stream, in, out, Same{}); });
}

}  // namespace shardcheck::gpu
