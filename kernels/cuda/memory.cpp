// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/memory.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cuda/check.hpp"

namespace shardcheck::gpu {
namespace {

constexpr std::size_t kSmallestBlock = std::size_t{4} << 10;

}  // namespace

StreamHandle::StreamHandle() {
  // Non-blocking: the default stream, which other libraries may use, does not wait for this one.
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make_stream");
}

// What a destructor is told by CUDA has been, or will be, told to a call that can say so.
StreamHandle::~StreamHandle() { static_cast<void>(cudaStreamDestroy(stream_)); }

EventHandle::EventHandle() {
  check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "record");
}

EventHandle::~EventHandle() { static_cast<void>(cudaEventDestroy(event_)); }

GpuStorage::GpuStorage(std::shared_ptr<StreamHandle> stream, std::size_t bytes, bool writable)
    : stream_(std::move(stream)), writable_(writable) {
  if (bytes == 0) return;
  void* data = nullptr;
  check(cudaMallocAsync(&data, bytes, stream_->get()), "allocate");
  data_ = static_cast<std::byte*>(data);
}

GpuStorage::~GpuStorage() {
  if (data_ != nullptr) static_cast<void>(cudaFreeAsync(data_, stream_->get()));
}

PinnedPool::~PinnedPool() {
  for (const auto& [size, blocks] : free_) {
    for (std::byte* const block : blocks) static_cast<void>(cudaFreeHost(block));
  }
}

PinnedPool::Block PinnedPool::take(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestBlock));
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& blocks = free_[size];
    if (!blocks.empty()) {
      std::byte* const data = blocks.back();
      blocks.pop_back();
      return {data, size};
    }
  }
  void* data = nullptr;
  check(cudaHostAlloc(&data, size, cudaHostAllocPortable), "to_host");
  return {static_cast<std::byte*>(data), size};
}

void PinnedPool::give(Block block) {
  const std::lock_guard lock(mutex_);
  free_[block.size].push_back(block.data);
}

void GpuStream::synchronize() { check(cudaStreamSynchronize(handle_->get()), "synchronize"); }

}  // namespace shardcheck::gpu
