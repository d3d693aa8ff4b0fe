// SPDX-License-Identifier: Apache-2.0
// Values as bytes, for messages between processes of one program on machines of one kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "model/error.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck {

class ParcelWriter {
 public:
  template <typename T>
  ParcelWriter& value(const T& item) {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&item), sizeof item);
    return *this;
  }
  ParcelWriter& text(std::string_view words) {
    value(words.size());
    bytes_.append(words);
    return *this;
  }
  /// A scalar dtype; {} as its shape.
  ParcelWriter& tensor(const HostTensor& host) {
    value(host.dtype()).value(host.shape().size());
    for (const std::int64_t extent : host.shape()) value(extent);
    if (!host.shape().empty())
      bytes_.append(reinterpret_cast<const char*>(host.data()), host.bytes());
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// In the order of writing. Throws CommError where bytes are missing. Views point into `bytes`.
class ParcelReader {
 public:
  explicit ParcelReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
    T item;
    std::memcpy(&item, next(sizeof item).data(), sizeof item);
    return item;
  }
  std::string_view text() { return next(value<std::size_t>()); }
  HostTensor tensor() {
    const auto dtype = value<DType>();
    std::vector<std::int64_t> shape(value<std::size_t>());
    for (std::int64_t& extent : shape) extent = value<std::int64_t>();
    if (shape.empty()) return {};
    HostTensor host(dtype, std::move(shape));
    const std::string_view data = next(host.bytes());
    if (!data.empty()) std::memcpy(host.mutable_data(), data.data(), data.size());
    return host;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view next(std::size_t count) {
    if (count > rest_.size())
      throw CommError("a message between processes is shorter than it says");
    const std::string_view result = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return result;
  }

  std::string_view rest_;
};

}  // namespace shardcheck
