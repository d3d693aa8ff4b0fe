// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/cuda_api.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/emu/runtime.hpp"

namespace shardcheck::emu {
namespace {

constexpr int kVersion = 13000;        // the CUDA whose interface this is
constexpr int kMajor = 9, kMinor = 0;  // as a Hopper
constexpr int kSharedPerBlock = 48 * 1024, kSharedOptIn = 227 * 1024;

thread_local cudaError_t last_error = cudaSuccess;  // CUDA's is one per host thread as well

Runtime& runtime() { return Runtime::instance(); }

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess && status != cudaErrorNotReady) last_error = status;
  return status;
}

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer", "invalid device pointer"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "the driver is older than the runtime"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find_error(cudaError_t error) {
  const auto* const found = std::find_if(
      std::begin(kErrors), std::end(kErrors),
      [error](const ErrorText& known) { return known.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

/// `height` rows of `width` bytes at equal distances.
struct Rows {
  std::byte* data;
  std::size_t pitch;
};

void copy_rows(Rows to, Rows from, std::size_t width, std::size_t height) {
  for (std::size_t row = 0; row < height; ++row) {
    std::memmove(to.data + row * to.pitch, from.data + row * from.pitch, width);
  }
}

bool allowed(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return to_device || from_device;
    case cudaMemcpyHostToHost:
      return false;
  }
  return false;
}

cudaError_t copy(Rows to, Rows from, std::size_t width, std::size_t height, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (!runtime().knows(stream)) return cudaErrorInvalidResourceHandle;
  if (width == 0 || height == 0) return cudaSuccess;
  if (to.data == nullptr || from.data == nullptr) return cudaErrorInvalidValue;
  if (height > 1 && (to.pitch < width || from.pitch < width)) return cudaErrorInvalidPitchValue;
  using Place = Runtime::Place;
  const Place to_place = runtime().place_of(to.data), from_place = runtime().place_of(from.data);
  if (kind == cudaMemcpyHostToHost) return cudaErrorNotSupported;
  if (!allowed(kind, to_place == Place::device, from_place == Place::device))
    return cudaErrorInvalidValue;

  std::vector<Access> accesses;
  if (to_place != Place::pageable) {
    accesses.push_back(access_to_rows(to.data, width, height, to.pitch, Use::writes));
  }
  std::shared_ptr<std::vector<std::byte>> taken;
  if (from_place != Place::pageable) {
    accesses.push_back(access_to_rows(from.data, width, height, from.pitch, Use::reads));
  } else {
    taken = std::make_shared<std::vector<std::byte>>(width * height);
    copy_rows({taken->data(), width}, from, width, height);
    from = {taken->data(), width};
  }
  runtime().enqueue(stream, "cudaMemcpyAsync", accesses, [=](std::uint64_t) {
    static_cast<void>(taken), copy_rows(to, from, width, height);
  });
  if (to_place == Place::pageable) runtime().synchronize(stream);
  return cudaSuccess;
}

Rows rows_at(const void* pointer, std::size_t pitch) {
  return {const_cast<std::byte*>(static_cast<const std::byte*>(pointer)), pitch};
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const known = find_error(error);
  return known == nullptr ? "unrecognized error code" : known->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const known = find_error(error);
  return known == nullptr ? "unrecognized error code" : known->text;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }

// ---- device ------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return answer(cudaErrorInvalidValue);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return answer(cudaErrorInvalidValue);
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  runtime().synchronize_all();
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return answer(cudaErrorInvalidValue);
  *version = kVersion;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (value == nullptr) return answer(cudaErrorInvalidValue);
  if (device != 0) return answer(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = kSharedPerBlock;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 1;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      return cudaSuccess;
    case cudaDevAttrPageableMemoryAccess:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedOptIn;
      return cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      return cudaSuccess;
  }
  return answer(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return answer(cudaErrorInvalidValue);
  if (device != 0) return answer(cudaErrorInvalidDevice);
  *properties = {"emu", runtime().bytes_total(), kMajor, kMinor, 1};
  return cudaSuccess;
}

// ---- streams and events ------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (stream == nullptr || flags > cudaStreamNonBlocking) return answer(cudaErrorInvalidValue);
  *stream = runtime().make_stream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return answer(runtime().destroy(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!runtime().knows(stream)) return answer(cudaErrorInvalidResourceHandle);
  runtime().synchronize(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (!runtime().knows(stream) || !runtime().knows(event))
    return answer(cudaErrorInvalidResourceHandle);
  if (flags != cudaEventWaitDefault) return answer(cudaErrorInvalidValue);
  runtime().wait(stream, event);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (event == nullptr || flags > (cudaEventBlockingSync | cudaEventDisableTiming)) {
    return answer(cudaErrorInvalidValue);
  }
  *event = runtime().make_event();
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return answer(runtime().destroy(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!runtime().knows(stream) || !runtime().knows(event))
    return answer(cudaErrorInvalidResourceHandle);
  runtime().record(event, stream);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (!runtime().knows(event)) return answer(cudaErrorInvalidResourceHandle);
  runtime().synchronize(event);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!runtime().knows(event)) return answer(cudaErrorInvalidResourceHandle);
  return runtime().query(event) ? cudaSuccess : cudaErrorNotReady;
}

// ---- memory ------------------------------------------------------------------------------------------------------

cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream) {
  if (!runtime().knows(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (pointer == nullptr || bytes == 0) return answer(cudaErrorInvalidValue);
  *pointer = runtime().allocate(bytes, stream);
  return answer(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (!runtime().knows(stream)) return answer(cudaErrorInvalidResourceHandle);
  return answer(runtime().free(static_cast<std::byte*>(pointer), stream) ? cudaSuccess
                                                                         : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || flags > (cudaHostAllocPortable | cudaHostAllocMapped)) {
    return answer(cudaErrorInvalidValue);
  }
  *pointer = runtime().allocate_pinned(bytes);
  return answer(*pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* pointer) {
  return answer(runtime().free_pinned(static_cast<std::byte*>(pointer)) ? cudaSuccess
                                                                        : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return answer(copy(rows_at(to, bytes), rows_at(from, bytes), bytes, 1, kind, stream));
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return answer(copy(rows_at(to, to_pitch), rows_at(from, from_pitch), width, height, kind, stream));
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (!runtime().knows(stream)) return answer(cudaErrorInvalidResourceHandle);
  if (bytes == 0) return cudaSuccess;
  if (runtime().place_of(to) == Runtime::Place::pageable) return answer(cudaErrorInvalidValue);
  runtime().enqueue(stream, "cudaMemsetAsync", {access_to(to, bytes, Use::writes)},
                    [=](std::uint64_t) { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (free_bytes == nullptr || total_bytes == nullptr) return answer(cudaErrorInvalidValue);
  *free_bytes = runtime().bytes_free();
  *total_bytes = runtime().bytes_total();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (pool == nullptr) return answer(cudaErrorInvalidValue);
  if (device != 0) return answer(cudaErrorInvalidDevice);
  *pool = reinterpret_cast<cudaMemPool_t>(&runtime());
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const bool known = pool == reinterpret_cast<cudaMemPool_t>(&runtime());
  return answer(known && attribute == cudaMemPoolAttrReleaseThreshold && value != nullptr
                    ? cudaSuccess
                    : cudaErrorInvalidValue);
}

// ---- kernels -----------------------------------------------------------------------------------------------------

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) return answer(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > kSharedOptIn) {
    return answer(cudaErrorInvalidValue);
  }
  runtime().set_dynamic_shared_limit(kernel, static_cast<std::size_t>(value));
  return cudaSuccess;
}

}  // namespace shardcheck::emu
