// SPDX-License-Identifier: Apache-2.0
// Where a GPU tensor's bytes are, and the stream in whose order they come and go. Only kernels/cuda and the
// communicators of GPUs include this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/api.hpp"
#include "kernels/device.hpp"
#include "kernels/tensor.hpp"

namespace shardcheck::gpu {

/// A cudaStream_t, shared by the Stream and everything that is given back in its order.
class StreamHandle {
 public:
  /// On the device that is current.
  StreamHandle();
  ~StreamHandle();
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A cudaEvent_t.
class EventHandle {
 public:
  /// Of the device that is current.
  EventHandle();
  ~EventHandle();
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Bytes from the pool of the stream's device; given back to it in the order of the stream.
class GpuStorage final : public Storage {
 public:
  /// No bytes are null. `writable`: false for a copy that stands for host memory (Device::adopt).
  GpuStorage(std::shared_ptr<StreamHandle> stream, std::size_t bytes, bool writable = true);
  ~GpuStorage() override;
  GpuStorage(const GpuStorage&) = delete;
  GpuStorage& operator=(const GpuStorage&) = delete;

  std::byte* data() const { return data_; }
  bool writable() const { return writable_; }

 private:
  std::shared_ptr<StreamHandle> stream_;
  std::byte* data_ = nullptr;
  bool writable_;
};

/// Pinned host memory, which copies from the device go to while the host does other things. Blocks are kept: freeing one
/// would stop the whole device.
class PinnedPool {
 public:
  struct Block {
    std::byte* data = nullptr;
    std::size_t size = 0;
  };

  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  Block take(std::size_t bytes);
  /// Precondition: nothing on the device still uses it.
  void give(Block block);

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_;  // by size
};

class GpuStream final : public Stream {
 public:
  /// On the device that is current.
  GpuStream() : handle_(std::make_shared<StreamHandle>()) {}
  void synchronize() override;
  const std::shared_ptr<StreamHandle>& handle() const { return handle_; }
  cudaStream_t get() const { return handle_->get(); }

 private:
  std::shared_ptr<StreamHandle> handle_;
};

inline cudaStream_t native(Stream& stream) { return static_cast<GpuStream&>(stream).get(); }

/// The device address of element (row, col). Precondition: a tensor of a GPU device.
inline std::byte* address(const Tensor& tensor, std::int64_t row = 0, std::int64_t col = 0) {
  std::byte* const data = static_cast<const GpuStorage&>(*tensor.storage).data();
  if (data == nullptr) return nullptr;  // no elements
  const std::int64_t element = tensor.offset + row * tensor.row_stride + col * tensor.col_stride;
  return data + element * static_cast<std::int64_t>(element_size(tensor.dtype));
}

}  // namespace shardcheck::gpu
