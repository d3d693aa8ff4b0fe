// SPDX-License-Identifier: Apache-2.0
// Writes small GGUF files, as the specification describes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "model/dtype.hpp"

namespace shardcheck {

class GgufWriter {
 public:
  void add_u32(const std::string& key, std::uint32_t value) { add_value(key, 4, scalar(value)); }
  void add_f32(const std::string& key, float value) { add_value(key, 6, scalar(value)); }
  void add_bool(const std::string& key, bool value) {
    add_value(key, 7, std::string(1, value ? '\1' : '\0'));
  }
  void add_string(const std::string& key, const std::string& value) {
    add_value(key, 8, text(value));
  }
  void add_strings(const std::string& key, const std::vector<std::string>& values) {
    std::string list = scalar(std::uint32_t{8}) + scalar(std::uint64_t{values.size()});
    for (const std::string& value : values) list += text(value);
    add_value(key, 9, list);
  }

  /// `shape` is row-major; the file holds it reversed.
  void add_tensor(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
                  const std::string& bytes) {
    tensors_ += text(name) + scalar(static_cast<std::uint32_t>(shape.size()));
    for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent)
      tensors_ += scalar(*extent);
    tensors_ += scalar(static_cast<std::uint32_t>(info(dtype).ggml_type)) +
                scalar(std::uint64_t{data_.size()});
    data_ += bytes;
    pad(data_);
    ++tensor_count_;
  }

  /// Bytes before the data, padding included.
  std::string header() const {
    std::string bytes = "GGUF" + scalar(std::uint32_t{3}) + scalar(tensor_count_) +
                        scalar(value_count_);
    bytes += values_ + tensors_;
    pad(bytes);
    return bytes;
  }
  std::string bytes() const { return header() + data_; }

  template <typename T>
  static std::string scalar(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
  }

 private:
  static std::string text(const std::string& value) {
    return scalar(std::uint64_t{value.size()}) + value;
  }
  static void pad(std::string& bytes) { bytes.resize((bytes.size() + 31) / 32 * 32, '\0'); }
  void add_value(const std::string& key, std::uint32_t type, const std::string& bytes) {
    values_ += text(key) + scalar(type) + bytes;
    ++value_count_;
  }

  std::string values_, tensors_, data_;
  std::uint64_t value_count_ = 0, tensor_count_ = 0;
};

}  // namespace shardcheck
