// SPDX-License-Identifier: Apache-2.0
// Sums over the threads of a block, in an order that the number of threads alone decides.
#pragma once

#include "kernels/cuda/simt.cuh"

namespace shardcheck::gpu {

inline constexpr int kMostThreads = 512;  // of a block that sums
inline constexpr int kMostWarps = kMostThreads / kWarp;

/// Threads for a row of `items` pieces: whole warps, a power of two of them. It depends on the row's length alone, and
/// so do the bits of what the block sums.
inline unsigned threads_for(std::int64_t items) {
  unsigned threads = kWarp;
  while (threads < kMostThreads && threads < items) threads *= 2;
  return threads;
}

/// The sum over the warp, in every lane. a + b = b + a, so all lanes get the same bits.
template <typename A>
__device__ inline A warp_sum(A x) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

/// The sum over a block of one dimension of whole warps, in every thread; all of them must call it. `of_warps`:
/// kMostWarps elements in shared memory, free for other use afterwards.
template <typename A, typename Shared>
__device__ inline A block_sum(A x, Shared& of_warps) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = warp_sum(x);
  if (warps == 1) return x;
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = x;
  __syncthreads();
  A total = of_warps[0];
  for (int warp = 1; warp < warps; ++warp) total += of_warps[warp];
  __syncthreads();
  return total;
}

}  // namespace shardcheck::gpu
