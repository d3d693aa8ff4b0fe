// SPDX-License-Identifier: Apache-2.0
// Streams, events and arrays of the emulated device that give back what they took, and two kernels.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/emu/runtime.hpp"
#include "model/error.hpp"

namespace shardcheck::emu {

class TestStream {
 public:
  TestStream() { gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make"); }
  ~TestStream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: it stands for one
  void synchronize() const { gpu::check(cudaStreamSynchronize(stream_), "synchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class TestEvent {
 public:
  TestEvent() { gpu::check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make"); }
  ~TestEvent() { static_cast<void>(cudaEventDestroy(event_)); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT: it stands for one

 private:
  cudaEvent_t event_ = nullptr;
};

/// What is enqueued on `later` from now on comes after what is on `earlier` by now.
inline void order(const TestStream& earlier, const TestStream& later) {
  const TestEvent event;
  gpu::check(cudaEventRecord(event, earlier), "record");
  gpu::check(cudaStreamWaitEvent(later, event, 0), "wait");
}

/// A dense matrix in device memory, allocated and freed in the order of a stream.
template <typename T>
class DeviceMatrix {
 public:
  DeviceMatrix(cudaStream_t stream, std::int64_t rows, std::int64_t cols)
      : stream_(stream), rows_(rows), cols_(cols) {
    void* data = nullptr;
    gpu::check(cudaMallocAsync(&data, bytes(), stream), "allocate");
    data_ = static_cast<T*>(data);
  }
  DeviceMatrix(cudaStream_t stream, std::int64_t rows, std::int64_t cols, const std::vector<T>& values)
      : DeviceMatrix(stream, rows, cols) {
    gpu::check(cudaMemcpyAsync(data_, values.data(), bytes(), cudaMemcpyHostToDevice, stream),
               "upload");
  }
  ~DeviceMatrix() { free(); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  void free() {
    if (data_ != nullptr) static_cast<void>(cudaFreeAsync(data_, stream_));
    data_ = nullptr;
  }
  T* data() const { return data_; }
  std::size_t bytes() const { return static_cast<std::size_t>(rows_ * cols_) * sizeof(T); }
  gpu::View<T> view() const { return {data_, rows_, cols_, cols_, 1}; }
  gpu::View<const T> read() const { return {data_, rows_, cols_, cols_, 1}; }
  /// Through pageable memory, which waits.
  std::vector<T> values(cudaStream_t stream) const {
    std::vector<T> host(static_cast<std::size_t>(rows_ * cols_));
    gpu::check(cudaMemcpyAsync(host.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream),
               "download");
    return host;
  }

 private:
  cudaStream_t stream_;
  std::int64_t rows_, cols_;
  T* data_ = nullptr;
};

class PinnedFloats {
 public:
  explicit PinnedFloats(std::size_t count) {
    gpu::check(cudaHostAlloc(&data_, count * sizeof(float), cudaHostAllocDefault), "pinned");
  }
  ~PinnedFloats() { static_cast<void>(cudaFreeHost(data_)); }
  PinnedFloats(const PinnedFloats&) = delete;
  PinnedFloats& operator=(const PinnedFloats&) = delete;
  float* data() const { return data_; }
  float& operator[](std::size_t i) const { return data_[i]; }

 private:
  float* data_ = nullptr;
};

/// out = in + 1.
__global__ inline void increment(gpu::View<const float> in, gpu::View<float> out) {
  const auto col = static_cast<std::int64_t>(threadIdx.x);
  for (std::int64_t row = 0; row < out.rows; ++row) {
    if (col < out.cols) out(row, col) = in(row, col) + 1.0f;
  }
}

/// Reads one element too far.
__global__ inline void overrun(gpu::View<float> out) { out(0, out.cols) = 0.0f; }

inline void launch_increment(const char* name, cudaStream_t stream, gpu::View<const float> in,
                             gpu::View<float> out) {
  gpu::launch(increment, {name, stream, dim3(1), dim3(64)}, in, out);
}

/// The seed that tasks and threads are ordered by, for as long as the object lives.
class Seed {
 public:
  explicit Seed(std::uint64_t seed) { Runtime::instance().set_seed(seed); }
  ~Seed() { Runtime::instance().set_seed(0); }
  Seed(const Seed&) = delete;
  Seed& operator=(const Seed&) = delete;
};

inline constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 17, 4711};

/// The message of the DeviceError that the call throws; empty if it throws none.
template <typename Call>
std::string device_error(Call&& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return {};
}

}  // namespace shardcheck::emu
