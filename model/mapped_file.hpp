// SPDX-License-Identifier: Apache-2.0
// A file seen as memory: pages are read when they are touched, and only those.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

namespace shardcheck {

/// Read-only. The mapping lives as long as the last pointer to it.
class MappedFile {
 public:
  /// Throws InputError if the file can't be opened, isn't a regular file or can't be mapped.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  std::size_t size_;
};

}  // namespace shardcheck
