// SPDX-License-Identifier: Apache-2.0
// Primitives that reduce: over ranks, and over a vocabulary.
#include "kernels/cuda/argmax.cuh"
#include "kernels/cuda/cross_entropy.cuh"
#include "kernels/cuda/primitives.hpp"
#include "kernels/cuda/reduce_n.cuh"
