// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block.hpp"

#include <fmt/format.h>

#include <cstring>
#include <stdexcept>

#include "kernels/cpu/lanes.hpp"
#include "model/float_bits.hpp"

namespace shardcheck::cpu {
namespace {

[[noreturn]] void not_floating(DType dtype) {
  throw std::logic_error(fmt::format("cpu: {} holds no floating values to compute with", name(dtype)));
}

/// out[i] = convert(in[i * stride]); the dense loop is its own so that it vectorises.
template <typename In, typename Out, typename Convert>
void gather(const std::byte* bytes, std::int64_t stride, std::int64_t n, Out* out, Convert convert) {
  const In* in = reinterpret_cast<const In*>(bytes);
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = convert(in[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = convert(in[i * stride]);
  }
}

template <typename In, typename Out, typename Convert>
void scatter(const In* in, std::int64_t n, std::byte* bytes, std::int64_t stride, Convert convert) {
  Out* out = reinterpret_cast<Out*>(bytes);
  if (stride == 1) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = convert(in[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i * stride] = convert(in[i]);
  }
}

// fp16 goes in lanes, whatever the stride: the compiler doesn't vectorise the conversion, and one instruction does it.

void gather_f16(const std::byte* bytes, std::int64_t stride, std::int64_t n, float* out) {
  const F16* in = reinterpret_cast<const F16*>(bytes);
  for (std::int64_t i = 0; i < n; i += kLanes<float>) {
    const std::int64_t count = std::min(kLanes<float>, n - i);
    if (stride == 1 && count == kLanes<float>) {
      store_lanes(out + i, load_lanes(in + i));
      continue;
    }
    F16 some[kLanes<float>] = {};
    for (std::int64_t j = 0; j < count; ++j) some[j] = in[(i + j) * stride];
    const Vector<float> wide = load_lanes(some);
    std::memcpy(out + i, &wide, static_cast<std::size_t>(count) * sizeof(float));
  }
}

void scatter_f16(const float* in, std::int64_t n, std::byte* bytes, std::int64_t stride) {
  F16* out = reinterpret_cast<F16*>(bytes);
  for (std::int64_t i = 0; i < n; i += kLanes<float>) {
    const std::int64_t count = std::min(kLanes<float>, n - i);
    if (stride == 1 && count == kLanes<float>) {
      store_lanes(out + i, load_lanes(in + i));
      continue;
    }
    F16 some[kLanes<float>];
    store_lanes(some, load_some<float>(in + i, count));
    for (std::int64_t j = 0; j < count; ++j) out[(i + j) * stride] = some[j];
  }
}

std::uint16_t to_bf16(float value) { return f32_to_bf16(value); }
std::uint16_t to_bf16(double value) { return f64_to_bf16(value); }

}  // namespace

template <typename A>
void load(const Tensor& tensor, std::int64_t row, std::int64_t col, std::int64_t n, A* out) {
  const std::byte* in = address(tensor, row, col);
  const std::int64_t stride = tensor.col_stride;
  switch (tensor.dtype) {
    case DType::f64: return gather<double>(in, stride, n, out, [](double v) { return static_cast<A>(v); });
    case DType::f32: return gather<float>(in, stride, n, out, [](float v) { return static_cast<A>(v); });
    case DType::bf16:
      return gather<std::uint16_t>(in, stride, n, out, [](std::uint16_t v) { return A{bf16_to_f32(v)}; });
    case DType::f16:
      if constexpr (std::is_same_v<A, float>) return gather_f16(in, stride, n, out);
      return gather<std::uint16_t>(in, stride, n, out, [](std::uint16_t v) { return A{f16_to_f32(v)}; });
    default: not_floating(tensor.dtype);
  }
}

template <typename A>
void store(const A* values, const Tensor& tensor, std::int64_t row, std::int64_t col, std::int64_t n) {
  std::byte* out = address(tensor, row, col);
  const std::int64_t stride = tensor.col_stride;
  switch (tensor.dtype) {
    case DType::f64: return scatter<A, double>(values, n, out, stride, [](A v) { return double{v}; });
    case DType::f32: return scatter<A, float>(values, n, out, stride, [](A v) { return static_cast<float>(v); });
    case DType::bf16: return scatter<A, std::uint16_t>(values, n, out, stride, [](A v) { return to_bf16(v); });
    case DType::f16:
      if constexpr (std::is_same_v<A, float>) return scatter_f16(values, n, out, stride);
      return scatter<A, std::uint16_t>(values, n, out, stride, [](A v) { return f64_to_f16(v); });
    default: not_floating(tensor.dtype);
  }
}

template void load<float>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, float*);
template void load<double>(const Tensor&, std::int64_t, std::int64_t, std::int64_t, double*);
template void store<float>(const float*, const Tensor&, std::int64_t, std::int64_t, std::int64_t);
template void store<double>(const double*, const Tensor&, std::int64_t, std::int64_t, std::int64_t);

}  // namespace shardcheck::cpu
