// SPDX-License-Identifier: Apache-2.0
// GGUF: one file with typed metadata and (quantised) tensors. Versions 2 and 3, little-endian.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/config.hpp"
#include "model/dtype.hpp"
#include "model/mapped_file.hpp"
#include "model/modules.hpp"

namespace shardcheck {

/// A list in the metadata: only its length is kept (vocabularies and merges aren't needed).
struct GgufArray {
  std::uint64_t count = 0;
};

using GgufValue = std::variant<std::int64_t, std::uint64_t, double, bool, std::string, GgufArray>;

struct GgufTensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;   // row-major: the file's order of dimensions reversed
  std::size_t begin = 0, bytes = 0;  // from the start of the file
};

/// A validated, memory-mapped file. Copies share the mapping; every member may be called from several threads.
class GgufFile {
 public:
  /// Throws InputError naming file and place: a wrong magic or version, a length, count or offset beyond the file, an
  /// unknown value type, a tensor type that can't be dequantised here, overlapping tensors, a name that stands twice.
  static GgufFile open(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor, std::less<>>& tensors() const { return tensors_; }
  std::span<const std::byte> raw(const GgufTensor& tensor) const {
    return mapping_->bytes().subspan(tensor.begin, tensor.bytes);
  }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> mapping_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

/// The config that the metadata of architectures llama, qwen2, qwen3 and gpt2 describes. Keys of the architecture that aren't
/// known are refused by name, as in config.json. The norm's epsilon is the stored f32, widened.
Config gguf_config(const GgufFile& file, const ConfigOptions& options = {});

/// The file's name of a canonical tensor: "blk.3.attn_q.weight" for "layers.3.self_attn.q_proj.weight".
std::string gguf_name(const Module& module, bool is_bias);

}  // namespace shardcheck
