// SPDX-License-Identifier: Apache-2.0
// safetensors: 8 bytes of header length, a JSON header, raw little-endian tensors.
// Source: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/dtype.hpp"
#include "model/host_tensor.hpp"
#include "model/mapped_file.hpp"

namespace shardcheck {

/// One tensor of a file. `dtype` is empty for types that can be stored but not computed with (BOOL, U8, F8...).
struct SafetensorsInfo {
  std::optional<DType> dtype;
  std::string dtype_name;  // as in the file: "BF16"
  std::vector<std::int64_t> shape;
  std::size_t begin = 0, end = 0;  // bytes from the start of the data
};

/// A validated, memory-mapped file. Copies share the mapping; every member may be called from several threads.
class SafetensorsFile {
 public:
  /// Throws InputError naming file and tensor: a length beyond 100 MB or the file, a header that isn't a JSON object,
  /// an unknown dtype, a shape that overflows or contradicts its offsets, tensors that overlap, leave a hole or
  /// don't end where the file ends, a name that stands twice.
  static SafetensorsFile open(const std::filesystem::path& file);

  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const;  // sorted
  bool contains(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// Throws InputError naming the nearest tensor.
  const SafetensorsInfo& info(std::string_view name) const;
  /// The mapped bytes themselves where they are aligned to the element, else a copy. Throws InputError for a dtype
  /// that can't be computed with.
  HostTensor tensor(std::string_view name) const;
  /// The tensor's bytes in the mapping.
  std::span<const std::byte> raw(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> mapping_;
  std::size_t data_begin_ = 0;
  std::map<std::string, SafetensorsInfo, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The files of a checkpoint: `folder`/model.safetensors, else those named by model.safetensors.index.json, else the
/// one *.safetensors there is. Empty if the folder holds none. Throws InputError if several have no index, if the index
/// names a file outside the folder or a tensor that its file doesn't hold, or if two files hold one name.
std::vector<SafetensorsFile> open_safetensors_folder(const std::filesystem::path& folder);

/// Writes all tensors (scalar dtypes) to a temporary file beside `file` and renames it: never a partial file. Tensors
/// are stored by falling element size, so that each is aligned. Throws InputError if the file can't be written.
void write_safetensors(const std::filesystem::path& file,
                       std::span<const std::pair<std::string, HostTensor>> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace shardcheck
