// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/error.hpp"
#include "model/gguf.hpp"
#include "model/quant.hpp"
#include "model/sources.hpp"

namespace shardcheck {
namespace {

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

std::string_view file_word(ModuleRole role) {
  switch (role) {
    case ModuleRole::token_embedding:
      return "token_embd";
    case ModuleRole::position_embedding:
      return "position_embd";
    case ModuleRole::attention_norm:
      return "attn_norm";
    case ModuleRole::q:
      return "attn_q";
    case ModuleRole::k:
      return "attn_k";
    case ModuleRole::v:
      return "attn_v";
    case ModuleRole::qkv:
      return "attn_qkv";
    case ModuleRole::q_norm:
      return "attn_q_norm";
    case ModuleRole::k_norm:
      return "attn_k_norm";
    case ModuleRole::o:
      return "attn_output";
    case ModuleRole::attention_post_norm:
      return "post_attention_norm";
    case ModuleRole::mlp_norm:
      return "ffn_norm";
    case ModuleRole::gate:
      return "ffn_gate";
    case ModuleRole::up:
      return "ffn_up";
    case ModuleRole::gate_up:
    case ModuleRole::fc:
      return "ffn_up";
    case ModuleRole::down:
      return "ffn_down";
    case ModuleRole::mlp_post_norm:
      return "post_ffw_norm";
    case ModuleRole::final_norm:
      return "output_norm";
    case ModuleRole::lm_head:
      return "output";
  }
  throw std::logic_error("a module role that no GGUF tensor has");
}

struct Entry {
  std::span<const std::byte> blocks;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t interleaved_head_dim = 0;  // 0: rows lie in canonical order
};

/// Canonical row (half-split: pair i is rows i and i + d/2 of the head) to the file's (pair i is rows 2i and 2i + 1).
std::int64_t interleaved_row(std::int64_t row, std::int64_t head_dim) {
  const std::int64_t in_head = row % head_dim;
  const std::int64_t half = in_head / (head_dim / 2);
  return row - in_head + 2 * (in_head % (head_dim / 2)) + half;
}

class GgufSource final : public WeightSource {
 public:
  GgufSource(GgufFile file, const Config& config, const std::vector<Module>& modules)
      : file_(std::move(file)) {
    std::set<std::string> used;
    for (const Module& module : modules) {
      add(config, module, false, used);
      if (module.has_bias) add(config, module, true, used);
    }
    for (const auto& [name, tensor] : file_.tensors()) {
      if (used.count(name) > 0) continue;
      if (name == kRopeFactors) {
        check_rope_factors(tensor);
        continue;
      }
      throw InputError(fmt::format(
          "{}: the tensor \"{}\" belongs to no module of a {} model; use a file of a supported "
          "architecture",
          file_.path().string(), name, config.model_type));
    }
  }

  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    const auto it = entries_.find(tensor);
    if (it == entries_.end()) return std::nullopt;
    return it->second.shape;
  }

  DType dtype(std::string_view tensor) const override {
    return entries_.find(tensor)->second.dtype;
  }

  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    const Entry& entry = entries_.find(tensor)->second;
    const std::int64_t cols = entry.shape.size() == 2 ? entry.shape[1] : 1;
    check_row_range(tensor, begin, end, entry.shape[0], cols, out.size());
    if (entry.interleaved_head_dim == 0)
      return dequantize(entry.dtype, entry.blocks, begin * cols, out);
    for (std::int64_t row = begin; row < end; ++row) {
      const std::span<float> to = out.subspan(static_cast<std::size_t>((row - begin) * cols),
                                              static_cast<std::size_t>(cols));
      dequantize(entry.dtype, entry.blocks, interleaved_row(row, entry.interleaved_head_dim) * cols,
                 to);
    }
  }

  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    const Entry& entry = entries_.find(tensor)->second;
    const std::int64_t cols = entry.shape.size() == 2 ? entry.shape[1] : 1;
    check_row_range(tensor, begin, end, entry.shape[0], cols, out.size());
    // Row by row, so that no f32 copy of the whole is needed.
    std::vector<float> row_values(static_cast<std::size_t>(cols));
    for (std::int64_t row = begin; row < end; ++row) {
      read_rows(tensor, row, row + 1, std::span<float>(row_values));
      std::copy(row_values.begin(), row_values.end(), out.begin() + (row - begin) * cols);
    }
  }

 private:
  void add(const Config& config, const Module& module, bool is_bias, std::set<std::string>& used) {
    const std::string stored = gguf_name(module, is_bias);
    const auto it = file_.tensors().find(stored);
    if (it == file_.tensors().end()) return;
    used.insert(stored);
    Entry entry{file_.raw(it->second), it->second.dtype, it->second.shape};
    // Files of the llama architecture keep q and k for the interleaved rotary embedding; the others don't.
    const bool is_rotated = module.role == ModuleRole::q || module.role == ModuleRole::k;
    if (is_rotated && config.model_type == "llama") entry.interleaved_head_dim = config.head_dim;
    entries_.emplace(is_bias ? module.bias() : module.weight(), std::move(entry));
  }

  void check_rope_factors(const GgufTensor& tensor) const {
    std::int64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    std::vector<float> factors(static_cast<std::size_t>(count));
    dequantize(tensor.dtype, file_.raw(tensor), 0, factors);
    for (const float factor : factors) {
      if (factor == 1.0f) continue;
      throw InputError(
          fmt::format("{}: \"{}\" scales the rotary frequencies (a factor is {}); that isn't "
                      "supported in a GGUF "
                      "file, use the model's safetensors with its config.json",
                      file_.path().string(), kRopeFactors, factor));
    }
  }

  GgufFile file_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace

std::string gguf_name(const Module& module, bool is_bias) {
  const std::string_view word = file_word(module.role);
  const std::string_view tail = is_bias ? "bias" : "weight";
  return module.layer < 0 ? fmt::format("{}.{}", word, tail)
                          : fmt::format("blk.{}.{}.{}", module.layer, word, tail);
}

std::unique_ptr<const WeightSource> gguf_source(GgufFile file, const Config& config,
                                                const std::vector<Module>& modules) {
  return std::make_unique<GgufSource>(std::move(file), config, modules);
}

}  // namespace shardcheck
