// SPDX-License-Identifier: Apache-2.0
// Primitives that work on one row, or one element, at a time, as one translation unit.
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/add_rms_norm.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/layer_norm.cuh"
#include "kernels/cuda/primitives.hpp"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rms_parts.cuh"
#include "kernels/cuda/rope.cuh"
