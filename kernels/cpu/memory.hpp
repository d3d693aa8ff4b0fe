// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a tensor in host memory are. Only devices that compute on the host include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "kernels/cpu/block_pool.hpp"
#include "kernels/tensor.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck::cpu {

inline constexpr std::size_t kAlignment = 64;

struct AlignedDelete {
  void operator()(std::byte* bytes) const { ::operator delete(bytes, std::align_val_t{kAlignment}); }
};

/// Uninitialised, 64-byte aligned working memory.
template <typename T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::int64_t elements)
      : bytes_(static_cast<std::byte*>(
            ::operator new(static_cast<std::size_t>(elements) * sizeof(T), std::align_val_t{kAlignment}))) {}
  T* data() { return reinterpret_cast<T*>(bytes_.get()); }

 private:
  static_assert(std::is_trivial_v<T>);
  std::unique_ptr<std::byte, AlignedDelete> bytes_;
};

/// Bytes that the device allocated, or a host tensor's (read only: nothing may write to an adopted tensor).
class CpuStorage final : public Storage {
 public:
  CpuStorage(std::shared_ptr<BlockPool> pool, std::size_t bytes)
      : pool_(std::move(pool)), block_(pool_->take(bytes)), data_(block_.bytes) {}
  explicit CpuStorage(HostTensor host)
      : host_(std::move(host)), data_(const_cast<std::byte*>(host_.data())), writable_(false) {}
  ~CpuStorage() override {
    if (pool_ != nullptr) pool_->give(block_);
  }
  CpuStorage(const CpuStorage&) = delete;
  CpuStorage& operator=(const CpuStorage&) = delete;

  std::byte* data() const { return data_; }
  bool writable() const { return writable_; }

 private:
  std::shared_ptr<BlockPool> pool_;  // which may outlive its device
  Block block_;
  HostTensor host_;
  std::byte* data_ = nullptr;
  bool writable_ = true;
};

/// The address of element (row, col). Precondition: a tensor of a HostDevice.
inline std::byte* address(const Tensor& tensor, std::int64_t row, std::int64_t col) {
  const std::int64_t element = tensor.offset + row * tensor.row_stride + col * tensor.col_stride;
  return static_cast<const CpuStorage&>(*tensor.storage).data() +
         element * static_cast<std::int64_t>(element_size(tensor.dtype));
}

template <typename T>
T* address_as(const Tensor& tensor, std::int64_t row, std::int64_t col) {
  return reinterpret_cast<T*>(address(tensor, row, col));
}

}  // namespace shardcheck::cpu
