// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash of dtype, shape and bytes, whatever the layout. Elements are packed with their neighbours in the row
// into words, and every word gives a term; the hash is the sum of the terms modulo 2^64, so threads and blocks may add
// theirs in any order.
//
// A term is a bijection of its word for every place, so tensors that differ in one word alone (one bit, for instance)
// always have different hashes; others collide with a chance of about 2^-64.
#pragma once

#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/pack.cuh"

namespace shardcheck::gpu {

using HashWord = unsigned long long;  // what atomicAdd takes

inline constexpr HashWord kHashOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio: odd, bits well spread

/// Spreads every bit over all others; a bijection.
__host__ __device__ inline HashWord spread(HashWord h) {
  h = (h ^ (h >> 32)) * kHashOdd;
  h = (h ^ (h >> 29)) * kHashOdd;
  return h ^ (h >> 32);
}

/// The term of `word` in place `index`. The seed is that of dtype and shape.
__device__ inline HashWord hash_term(HashWord seed, std::uint64_t index, HashWord word) {
  return spread(spread(word + seed) ^ (seed + (index + 1) * kHashOdd));
}

/// slot[0, 0] = the hash of x, or that much of it added where several blocks share the work.      x [M, D]
template <bool kAligned, typename Element>
__global__ void __launch_bounds__(kMostThreads)
    hash_tensor(View<const Element> x, HashWord seed, View<HashWord> slot) {
  constexpr int kCount = kPackOf<Element>, kInWord = kCount / 2;
  constexpr int kBits = 8 * static_cast<int>(sizeof(Element));
  SHARED_ARRAY(HashWord, of_warps, kMostWarps);
  const std::int64_t packs_in_row = (x.cols + kCount - 1) / kCount;
  HashWord sum = 0;
  for (std::int64_t row = blockIdx.y; row < x.rows; row += gridDim.y) {
    for (std::int64_t at = grid_first_x(); at < packs_in_row; at += grid_step_x()) {
      const Pack<Element, kCount> pack = load_pack<kCount, kAligned>(x, row, at * kCount);
      HashWord words[2] = {0, 0};
      for (int i = 0; i < kCount; ++i)
        words[i / kInWord] |= static_cast<HashWord>(pack.values[i]) << (i % kInWord * kBits);
      const auto index = static_cast<std::uint64_t>(row * packs_in_row + at) * 2;
      sum += hash_term(seed, index, words[0]) + hash_term(seed, index + 1, words[1]);
    }
  }
  sum = block_sum(sum, of_warps);
  if (threadIdx.x != 0) return;
  if (gridDim.x * gridDim.y == 1) {
    slot(0, 0) = seed + sum;
  } else {
    atomicAdd(&slot(0, 0), sum);
  }
}

template <typename Word>
__global__ void set_word(View<Word> slot, Word value) {
  slot(0, 0) = value;
}

/// slots[0, index] = the hash of `tensor`.                                                        slots [1, n] u64
void hash(cudaStream_t stream, const Tensor& tensor, const Tensor& slots, std::int64_t index) {
  HashWord seed = spread(static_cast<HashWord>(tensor.dtype) + kHashOdd);
  seed = spread(seed ^ static_cast<HashWord>(tensor.rows));
  seed = spread(seed + static_cast<HashWord>(tensor.cols));
  const auto slot = view<HashWord>(slots.col_range(index, index + 1));
  const auto begin = [&] {
    launch(set_word<HashWord>, {"hash", stream, dim3(1), dim3(1)}, slot, seed);
  };
  if (tensor.elements() == 0) return begin();
  with_word(tensor.dtype, [&]<typename Element>(Element) {
    constexpr int kCount = kPackOf<Element>;
    const Tensor x = tensor.cols % kCount == 0 ? flattened<1>({tensor})[0]
                                               : tensor;  // places stay the same
    const std::int64_t packs_in_row = (x.cols + kCount - 1) / kCount;
    const unsigned threads = threads_for(packs_in_row);
    const auto across = std::min<std::int64_t>(kMostBlocks,
                                               (packs_in_row + 4 * threads - 1) / (4 * threads));
    const auto down = std::min<std::int64_t>(x.rows, std::max<std::int64_t>(1, 4096 / across));
    if (across * down > 1) begin();
    launch(packs(x, kCount) ? hash_tensor<true, Element> : hash_tensor<false, Element>,
           {"hash", stream, dim3(static_cast<unsigned>(across), static_cast<unsigned>(down)),
            dim3(threads)},
           view<const Element>(x), seed, slot);
  });
}

}  // namespace shardcheck::gpu
