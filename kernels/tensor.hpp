// SPDX-License-Identifier: Apache-2.0
// A tensor on a device. It has no data(): only the device's own kernels know what the storage handle points to,
// so nothing above kernels/ can assume that the host may read it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/dtype.hpp"

namespace shardcheck {

class Device;

/// Memory of a device, freed with its last tensor. Each device derives its own.
class Storage {
 public:
  virtual ~Storage() = default;
};

/// A strided matrix [rows, cols] (a vector is [1, n]) of scalar elements inside a Storage.
struct Tensor {
  Device* device = nullptr;
  std::shared_ptr<Storage> storage;
  std::int64_t offset = 0;  // elements from the storage's start
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_stride = 0, col_stride = 1;  // elements

  explicit operator bool() const { return device != nullptr; }
  std::int64_t elements() const { return rows * cols; }
  std::int64_t bytes() const { return elements() * static_cast<std::int64_t>(element_size(dtype)); }
  bool contiguous() const { return col_stride == 1 && (row_stride == cols || rows <= 1); }

  /// Views of rows [begin, end) or columns [begin, end): the same storage, nothing is moved.
  Tensor row_range(std::int64_t begin, std::int64_t end) const {
    Tensor view = *this;
    view.offset += begin * row_stride;
    view.rows = end - begin;
    return view;
  }
  Tensor col_range(std::int64_t begin, std::int64_t end) const {
    Tensor view = *this;
    view.offset += begin * col_stride;
    view.cols = end - begin;
    return view;
  }
};

}  // namespace shardcheck
