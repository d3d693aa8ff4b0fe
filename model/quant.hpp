// SPDX-License-Identifier: Apache-2.0
// Dequantisation of ggml's block formats. In f32 with the roundings of ggml's own reference routines, so that a value
// is the same number in every program that reads the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/dtype.hpp"

namespace shardcheck {

/// Elements [first, first + out.size()) of a run of blocks; neither end need lie on a block's border. Scalar dtypes too
/// (f64 and the integers are rounded to f32). Precondition: `blocks` holds all those elements.
void dequantize(DType dtype, std::span<const std::byte> blocks, std::int64_t first,
                std::span<float> out);

}  // namespace shardcheck
