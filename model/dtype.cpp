// SPDX-License-Identifier: Apache-2.0
#include "model/dtype.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace shardcheck {
namespace {

// In the order of the enum. ggml numbers and block layouts: the GGUF specification (ggml/docs/gguf.md).
constexpr std::array<DTypeInfo, 12> kTable = {{
    {DType::f64, "f64", "F64", 28, 1, 8, 53, -1022, std::numeric_limits<double>::max()},
    {DType::f32, "f32", "F32", 0, 1, 4, 24, -126, std::numeric_limits<float>::max()},
    {DType::f16, "fp16", "F16", 1, 1, 2, 11, -14, 65504.0},
    {DType::bf16, "bf16", "BF16", 30, 1, 2, 8, -126, 0x1.fep127},
    {DType::i64, "i64", "I64", 27, 1, 8, 0, 0, 0x1p63},
    {DType::u64, "u64", "U64", -1, 1, 8, 0, 0, 0x1p64},
    {DType::q8_0, "q8_0", "", 8, 32, 34, 0, 0, 0.0},
    {DType::q4_0, "q4_0", "", 2, 32, 18, 0, 0, 0.0},
    {DType::q4_1, "q4_1", "", 3, 32, 20, 0, 0, 0.0},
    {DType::q4_k, "q4_k", "", 12, 256, 144, 0, 0, 0.0},
    {DType::q6_k, "q6_k", "", 14, 256, 210, 0, 0, 0.0},
    {DType::field, "field", "", -1, 1, 8, 0, 0, 0x1p61},
}};

constexpr bool in_enum_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enum_order());

constexpr std::array<std::pair<std::string_view, DType>, 14> kFloatWords = {{
    {"f64", DType::f64},
    {"fp64", DType::f64},
    {"float64", DType::f64},
    {"double", DType::f64},
    {"f32", DType::f32},
    {"fp32", DType::f32},
    {"float32", DType::f32},
    {"float", DType::f32},
    {"f16", DType::f16},
    {"fp16", DType::f16},
    {"float16", DType::f16},
    {"half", DType::f16},
    {"bf16", DType::bf16},
    {"bfloat16", DType::bf16},
}};

void require_float(DType dtype) {
  if (!is_float(dtype)) throw std::logic_error("a floating dtype is needed here");
}

}  // namespace

const DTypeInfo& info(DType dtype) { return kTable.at(static_cast<std::size_t>(dtype)); }

std::size_t element_size(DType dtype) {
  const DTypeInfo& facts = info(dtype);
  if (facts.block_elements != 1) throw std::logic_error("a quantised dtype has no element size");
  return facts.block_bytes;
}

double unit_roundoff(DType dtype) {
  require_float(dtype);
  return std::ldexp(1.0, -info(dtype).precision);
}

double half_min_subnormal(DType dtype) {
  require_float(dtype);
  // f64's own half lies below f64: its smallest subnormal stands in for it, the nearest bound from above.
  const double half = std::ldexp(1.0, info(dtype).min_exponent - info(dtype).precision);
  return std::max(half, std::numeric_limits<double>::denorm_min());
}

DType coarser(DType a, DType b) {
  require_float(a);
  require_float(b);
  return info(a).precision <= info(b).precision ? a : b;
}

std::optional<DType> parse_float_dtype(std::string_view word) {
  for (const auto& [spelling, dtype] : kFloatWords) {
    if (spelling == word) return dtype;
  }
  return std::nullopt;
}

}  // namespace shardcheck
