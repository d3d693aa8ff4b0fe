// SPDX-License-Identifier: Apache-2.0
// Storage types and the types that kernels compute in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/simt.cuh"
#include "model/dtype.hpp"
#if defined(SHARDCHECK_EMU)
#include "model/float_bits.hpp"
#endif

namespace shardcheck::gpu {

/// 16-bit storage, told apart by type. Values are widened, computed with, and rounded once.
struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

/// What values of storage type T are computed in.
template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

__device__ inline double widen(double x) { return x; }
__device__ inline float widen(float x) { return x; }
#if defined(SHARDCHECK_EMU)
inline float widen(Bf16 x) { return bf16_to_f32(x.bits); }
inline float widen(F16 x) { return f16_to_f32(x.bits); }
#else
__device__ inline float widen(Bf16 x) { return __bfloat162float(__ushort_as_bfloat16(x.bits)); }
__device__ inline float widen(F16 x) { return __half2float(__ushort_as_half(x.bits)); }
#endif

/// x rounded to T, once, to nearest even. From double to 16 bits without a stop at float.
template <typename T, typename A>
__device__ inline T narrow(A x) {
  if constexpr (std::is_same_v<T, double> || std::is_same_v<T, float>) {
    return static_cast<T>(x);
#if defined(SHARDCHECK_EMU)
  } else if constexpr (std::is_same_v<T, Bf16>) {
    if constexpr (std::is_same_v<A, double>) return Bf16{f64_to_bf16(x)};
    else return Bf16{f32_to_bf16(x)};
  } else {
    if constexpr (std::is_same_v<A, double>) return F16{f64_to_f16(x)};
    else return F16{f32_to_f16(x)};
  }
#else
  } else if constexpr (std::is_same_v<T, Bf16>) {
    if constexpr (std::is_same_v<A, double>) return Bf16{__bfloat16_as_ushort(__double2bfloat16(x))};
    else return Bf16{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  } else {
    if constexpr (std::is_same_v<A, double>) return F16{__half_as_ushort(__double2half(x))};
    else return F16{__half_as_ushort(__float2half_rn(x))};
  }
#endif
}

template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, double>  ? DType::f64
                                  : std::is_same_v<T, float> ? DType::f32
                                  : std::is_same_v<T, Bf16>  ? DType::bf16
                                                             : DType::f16;

/// Calls body(T{}) with the storage type of a floating dtype.
template <typename Body>
void with_storage_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64: return body(double{});
    case DType::f32: return body(float{});
    case DType::bf16: return body(Bf16{});
    default: return body(F16{});
  }
}

}  // namespace shardcheck::gpu
