// SPDX-License-Identifier: Apache-2.0
// The three places weights come from. Each is checked for tensors that don't belong to the model; that none is
// missing or misshapen is checked by Model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/gguf.hpp"
#include "model/model.hpp"
#include "model/safetensors.hpp"

namespace shardcheck {

/// Tensors of one or several files by canonical name, with or without the base-model prefix. Known buffers (rotary
/// frequencies, gpt2's causal masks) are skipped; a tied weight that is stored again must have the same bytes.
/// Throws InputError naming a tensor that the model doesn't have, one that stands under two names, a dtype that isn't
/// F64, F32, F16 or BF16.
std::unique_ptr<const WeightSource> safetensors_source(std::vector<SafetensorsFile> files,
                                                       const std::vector<Module>& modules);

/// Tensors of a GGUF file under canonical names, dequantised in f32 as ggml does it. q and k rows (and biases) of the
/// llama architecture are put back from interleaved to half-split rotary order.
/// Throws InputError naming a tensor that the model doesn't have, and on rotary factors that aren't all 1.
std::unique_ptr<const WeightSource> gguf_source(GgufFile file, const Config& config,
                                                const std::vector<Module>& modules);

/// Synthetic weights, f32, a pure function of (seed, canonical name, global element index). Linears and embeddings:
/// normals of variance 1 / in; norms: around 1, different in each channel; biases: 0.1 x normals. About one channel
/// in 256 (at least one) of norms, embeddings and of the linears that write to the residual is 8 times larger.
std::unique_ptr<const WeightSource> synthetic_source(std::uint64_t seed,
                                                     const std::vector<Module>& modules);

/// How rows of canonical tensors lie in a file.
struct StoredTensor {
  std::int64_t rows = 0, cols = 0;  // canonical; a vector [n] is n rows of 1
  bool is_vector = false;
  std::vector<std::int64_t> shape() const {
    return is_vector ? std::vector<std::int64_t>{rows} : std::vector<std::int64_t>{rows, cols};
  }
};

/// Throws std::logic_error unless 0 <= begin <= end <= rows and `out` has (end - begin) x cols elements.
void check_row_range(std::string_view tensor, std::int64_t begin, std::int64_t end,
                     std::int64_t rows, std::int64_t cols, std::size_t out_elements);

}  // namespace shardcheck
