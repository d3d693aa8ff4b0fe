// SPDX-License-Identifier: Apache-2.0
// Primitives that move bytes and compute nothing, as one translation unit.
#include "kernels/cuda/cast.cuh"
#include "kernels/cuda/copy.cuh"
#include "kernels/cuda/embedding.cuh"
#include "kernels/cuda/hash.cuh"
#include "kernels/cuda/poison.cuh"
#include "kernels/cuda/primitives.hpp"
