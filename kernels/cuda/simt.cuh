// SPDX-License-Identifier: Apache-2.0
// What a kernel body is written in. Under nvcc this is CUDA; with SHARDCHECK_EMU g++ compiles the same bodies, and
// kernels/emu supplies __global__, threadIdx, __syncthreads, __shfl_xor_sync and the rest.
//
// Rules for kernel bodies, so that both run them and emu can check them:
//  - global memory is reached through View alone (view.cuh), whose indices emu checks;
//  - shared memory is declared with SHARED_ARRAY or DYNAMIC_SHARED and reached by [] alone: emu knows then who wrote an
//    element, in which barrier interval, and reports a race, an index out of range and a read of what nobody wrote;
//  - warps have 32 lanes; every warp operation names its lanes by a mask;
//  - no <<<>>>: host code calls launch() (launch.cuh); no printf, no assembly outside of `#if !defined(SHARDCHECK_EMU)`.
#pragma once

#if defined(SHARDCHECK_EMU)

#include "kernels/emu/simt.hpp"  // also defines SHARED_ARRAY and DYNAMIC_SHARED

#define UNROLLED

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/// `name`: `count` (a constant) elements of `type`, shared by the block.
#define SHARED_ARRAY(type, name, count) __shared__ __align__(16) type name[count]
/// `name`: elements of `type`, as many as fit Launch::shared_bytes. One per kernel.
#define DYNAMIC_SHARED(type, name)                               \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(dynamic_shared)
/// Before a loop of constant length whose arrays are to stay in registers.
#define UNROLLED _Pragma("unroll")

#endif

namespace shardcheck::gpu {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarp = 32;

}  // namespace shardcheck::gpu
