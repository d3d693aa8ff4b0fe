// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime and cuBLASLt, or their stand-ins in kernels/emu: what follows is one source for both. With
// SHARDCHECK_EMU the same names (cudaMallocAsync, cublasLtMatmul, ...) are found in shardcheck::emu.
#pragma once

#if defined(SHARDCHECK_EMU)
#include "kernels/emu/cublaslt_api.hpp"
#include "kernels/emu/cuda_api.hpp"
namespace shardcheck::gpu {
using namespace ::shardcheck::emu;  // NOLINT: the point of this header
}
#else
#include <cublasLt.h>
#include <cuda_runtime.h>
#endif
