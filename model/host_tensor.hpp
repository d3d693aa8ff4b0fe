// SPDX-License-Identifier: Apache-2.0
// A dense row-major array in host memory: what files, taps and the harness exchange with devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/dtype.hpp"

namespace shardcheck {

/// Row-major, contiguous, 64-byte aligned; the bytes are shared between copies and never change after filling.
class HostTensor {
 public:
  HostTensor() = default;
  /// Zero-filled. Extents may be 0.
  HostTensor(DType dtype, std::vector<std::int64_t> shape);
  /// Over read-only bytes that somebody else keeps alive (a mapped file), aligned to the element.
  HostTensor(DType dtype, std::vector<std::int64_t> shape, std::shared_ptr<const std::byte> bytes);

  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t elements() const;
  std::size_t bytes() const;  // scalar dtypes
  /// Rows and columns of a matrix; a vector [n] counts as one row of n.
  std::int64_t rows() const { return shape_.size() == 2 ? shape_[0] : 1; }
  std::int64_t cols() const { return shape_.empty() ? 0 : shape_.back(); }

  const std::byte* data() const { return bytes_.get(); }
  /// The same bytes under another shape of as many elements.
  HostTensor reshaped(std::vector<std::int64_t> shape) const {
    return {dtype_, std::move(shape), bytes_};
  }
  std::byte* mutable_data();  // only while this is the sole owner (being filled)
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data()), static_cast<std::size_t>(elements())};
  }
  template <typename T>
  std::span<T> as_mutable() {
    return {reinterpret_cast<T*>(mutable_data()), static_cast<std::size_t>(elements())};
  }

  /// Element by flat row-major index, widened exactly.
  double at(std::int64_t index) const;
  /// All elements widened exactly (floating dtypes and i64).
  std::vector<double> to_f64() const;
  void widen(std::span<double> out) const;
  bool bitwise_equal(const HostTensor& other) const;  // dtype, shape and bytes

 private:
  DType dtype_ = DType::f32;
  std::vector<std::int64_t> shape_;
  std::shared_ptr<const std::byte> bytes_;
  bool owned_ = false;  // allocated here, so it may be filled; false for somebody else's bytes
};

/// Converts with one RNE rounding to a floating dtype. From f64 values.
HostTensor round_to(DType dtype, std::vector<std::int64_t> shape, std::span<const double> values);

/// "[5, 576]".
std::string to_string(std::span<const std::int64_t> shape);

}  // namespace shardcheck
