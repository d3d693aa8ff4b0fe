// SPDX-License-Identifier: Apache-2.0
// Element types: what a checkpoint stores, what a run stores, sends and accumulates in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace shardcheck {

/// `field` is an integer modulo 2^61 - 1, stored as u64: what a program is run in to prove it, without rounding.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, u64, q8_0, q4_0, q4_1, q4_k, q6_k, field };

/// Facts of a dtype. Floating formats round to nearest even: u = 2^-precision is half an ulp of 1.
struct DTypeInfo {
  DType dtype;
  std::string_view name;  // as typed on the command line and printed: "bf16" ("fp16" for f16)
  std::string_view safetensors;  // "BF16"; empty where safetensors has no such type
  int ggml_type;                 // the number in a GGUF tensor record, -1 if none
  std::int64_t block_elements;   // elements that share one block; 1 for scalar types
  std::size_t block_bytes;       // bytes of one block
  int precision;     // significand bits with the hidden one; 0 for types that aren't floating
  int min_exponent;  // smallest normal number is 2^min_exponent
  double max_finite;
};

const DTypeInfo& info(DType dtype);
inline std::string_view name(DType dtype) { return info(dtype).name; }
inline bool is_float(DType dtype) { return info(dtype).precision > 0; }

/// Bytes of one element. Precondition: a scalar type.
std::size_t element_size(DType dtype);

/// Half an ulp of 1 in a floating dtype: 2^-precision. f64 2^-53, f32 2^-24, f16 2^-11, bf16 2^-8.
double unit_roundoff(DType dtype);

/// Half of the smallest subnormal: what one rounding may lose however small the value is.
double half_min_subnormal(DType dtype);

/// The dtype a value of this storage dtype is computed and accumulated in on every device: f64 in f64, field in field,
/// else f32.
inline DType accumulate_dtype(DType storage) {
  return storage == DType::f64 || storage == DType::field ? storage : DType::f32;
}

/// The less precise of two floating dtypes; between f16 and bf16 (which don't nest) it is bf16.
DType coarser(DType a, DType b);

/// "f64", "f32", "bf16", "fp16" (also "f16", "float32", "bfloat16", ...); nothing for any other word.
std::optional<DType> parse_float_dtype(std::string_view word);

}  // namespace shardcheck
