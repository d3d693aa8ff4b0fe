// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime's C interface that kernels/cuda calls, with CUDA's names, types and values, for one
// device that exists only here.
//
// What differs from CUDA, on purpose:
//  - work is enqueued and nothing runs before the host waits (cudaStreamSynchronize, cudaEventSynchronize, or a copy
//    that waits by nature): then the tasks that it waits for run, in an order that the streams and events allow;
//  - what a kernel does wrong, and two streams that touch the same bytes in no order, throw DeviceError with the names
//    of both; real CUDA returns a status or says nothing. Arguments that CUDA refuses give CUDA's status;
//  - after an error the tasks that were waiting are dropped and every stream that had some throws once, at its next
//    synchronisation; freeing and destroying never throw;
//  - device memory can't be touched by the host: the access is a segmentation fault. Fresh and freed bytes are 0xff;
//  - the default stream isn't there: a null stream is cudaErrorInvalidResourceHandle.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/emu/dim3.hpp"

namespace shardcheck::emu {

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidPitchValue = 12,
  cudaErrorInvalidDevicePointer = 17,
  cudaErrorInvalidMemcpyDirection = 21,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorUnknown = 999
};

const char* cudaGetErrorName(cudaError_t error);
const char* cudaGetErrorString(cudaError_t error);
/// The last status that wasn't cudaSuccess on this host thread, which is forgotten by asking.
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

// ---- device ------------------------------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaDriverGetVersion(int* version);

enum cudaDeviceAttr : int {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrPageableMemoryAccess = 88,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMemoryPoolsSupported = 115
};
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);

/// Of the many fields, those that describe a device in a report.
struct cudaDeviceProp {
  char name[256];
  std::size_t totalGlobalMem;
  int major, minor;
  int multiProcessorCount;
};
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);

// ---- streams and events ------------------------------------------------------------------------------------------
using cudaStream_t = struct EmuStream*;
using cudaEvent_t = struct EmuEvent*;

inline constexpr unsigned cudaStreamDefault = 0, cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2;
inline constexpr unsigned cudaEventWaitDefault = 0;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
/// What the stream still holds runs now; an error in it is lost with the stream.
cudaError_t cudaStreamDestroy(cudaStream_t stream);
/// Throws DeviceError for what a task did wrong.
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned flags = cudaEventWaitDefault);

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
/// Throws DeviceError for what a task did wrong.
cudaError_t cudaEventSynchronize(cudaEvent_t event);
/// cudaSuccess or cudaErrorNotReady. Each question lets the device do one task more, so that polling ends.
cudaError_t cudaEventQuery(cudaEvent_t event);

// ---- memory ------------------------------------------------------------------------------------------------------
enum cudaMemcpyKind : int {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
inline constexpr unsigned cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2;

/// 256-byte aligned; usable by tasks that come after this point of the stream.
cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t stream);
template <typename T>
cudaError_t cudaMallocAsync(T** pointer, std::size_t bytes, cudaStream_t stream) {
  return cudaMallocAsync(reinterpret_cast<void**>(pointer), bytes, stream);
}
/// In the order of the stream. Never throws: where another stream still uses the bytes, both streams throw DeviceError
/// at their next synchronisation.
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream);
/// Pinned host memory.
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags);
template <typename T>
cudaError_t cudaHostAlloc(T** pointer, std::size_t bytes, unsigned flags) {
  return cudaHostAlloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
/// Waits for the tasks that use it, as CUDA does.
cudaError_t cudaFreeHost(void* pointer);

/// From ordinary (pageable) host memory the bytes are taken at the call; to it the call waits for the copy. With pinned
/// host memory both happen in the stream's time.
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
/// `height` rows of `width` bytes, pitches in bytes.
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);

/// The default pool keeps what is freed, whatever the threshold.
using cudaMemPool_t = struct EmuMemPool*;
enum cudaMemPoolAttr : int { cudaMemPoolAttrReleaseThreshold = 4 };
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);

// ---- kernels -----------------------------------------------------------------------------------------------------
enum cudaFuncAttribute : int { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
/// More than 48 KiB of dynamic shared memory must be allowed by this before a kernel is launched.
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value);
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

}  // namespace shardcheck::emu
