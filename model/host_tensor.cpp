// SPDX-License-Identifier: Apache-2.0
#include "model/host_tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "model/error.hpp"
#include "model/float_bits.hpp"

namespace shardcheck {
namespace {

constexpr std::size_t kAlignment = 64;

/// Bytes of a shape. Throws ShapeError on a negative extent or a product that overflows.
std::size_t checked_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  std::int64_t count = static_cast<std::int64_t>(element_size(dtype));
  bool fits = true;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0)
      throw ShapeError(fmt::format("shape {}: an extent is negative", to_string(shape)));
    empty = empty || extent == 0;
    fits = fits && !__builtin_mul_overflow(count, extent, &count);
  }
  if (empty) return 0;
  if (!fits)
    throw ShapeError(fmt::format("shape {}: more bytes than 64 bits can count", to_string(shape)));
  return static_cast<std::size_t>(count);
}

std::shared_ptr<std::byte> allocate_zeroed(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - kAlignment) throw std::bad_alloc();
  const std::size_t rounded = (bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {static_cast<std::byte*>(memory), [](std::byte* owned) { std::free(owned); }};
}

template <typename Stored, typename Widen>
void widen_all(const HostTensor& tensor, std::span<double> out, Widen widen_one) {
  const std::span<const Stored> in = tensor.as<Stored>();
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = widen_one(in[i]);
}

template <typename Stored, typename Round>
void round_all(std::span<const double> in, HostTensor& tensor, Round round_one) {
  const std::span<Stored> out = tensor.as_mutable<Stored>();
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = round_one(in[i]);
}

}  // namespace

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), owned_(true) {
  bytes_ = allocate_zeroed(checked_bytes(dtype_, shape_));
}

HostTensor::HostTensor(DType dtype, std::vector<std::int64_t> shape,
                       std::shared_ptr<const std::byte> bytes)
    : dtype_(dtype), shape_(std::move(shape)), bytes_(std::move(bytes)) {
  checked_bytes(dtype_, shape_);
}

std::int64_t HostTensor::elements() const {
  if (bytes_ == nullptr) return 0;
  std::int64_t count = 1;
  // An extent of 0 first: the product of the others need not fit.
  for (const std::int64_t extent : shape_) {
    if (extent == 0) return 0;
  }
  for (const std::int64_t extent : shape_) count *= extent;
  return count;
}

std::size_t HostTensor::bytes() const {
  return static_cast<std::size_t>(elements()) * element_size(dtype_);
}

std::byte* HostTensor::mutable_data() {
  if (!owned_ || bytes_.use_count() > 1) {
    throw std::logic_error("a HostTensor may be written only by its sole owner");
  }
  return const_cast<std::byte*>(bytes_.get());
}

double HostTensor::at(std::int64_t index) const {
  if (index < 0 || index >= elements()) {
    throw ShapeError(fmt::format("element {} of a tensor of shape {}", index, to_string(shape_)));
  }
  const auto i = static_cast<std::size_t>(index);
  switch (dtype_) {
    case DType::f64:
      return as<double>()[i];
    case DType::f32:
      return double{as<float>()[i]};
    case DType::f16:
      return double{f16_to_f32(as<std::uint16_t>()[i])};
    case DType::bf16:
      return double{bf16_to_f32(as<std::uint16_t>()[i])};
    case DType::i64:
      return static_cast<double>(as<std::int64_t>()[i]);
    case DType::u64:
      return static_cast<double>(as<std::uint64_t>()[i]);
    case DType::field:
      throw std::logic_error("a residue modulo a prime is no real number; read it as u64");
    default:
      throw std::logic_error("a HostTensor holds scalar dtypes only");
  }
}

void HostTensor::widen(std::span<double> out) const {
  if (out.size() != static_cast<std::size_t>(elements())) {
    throw ShapeError(
        fmt::format("a tensor of shape {} widened into {} values", to_string(shape_), out.size()));
  }
  switch (dtype_) {
    case DType::f64:
      return widen_all<double>(*this, out, [](double x) { return x; });
    case DType::f32:
      return widen_all<float>(*this, out, [](float x) { return double{x}; });
    case DType::f16:
      return widen_all<std::uint16_t>(*this, out,
                                      [](std::uint16_t x) { return double{f16_to_f32(x)}; });
    case DType::bf16:
      return widen_all<std::uint16_t>(*this, out,
                                      [](std::uint16_t x) { return double{bf16_to_f32(x)}; });
    case DType::i64:
      return widen_all<std::int64_t>(*this, out,
                                     [](std::int64_t x) { return static_cast<double>(x); });
    case DType::u64:
      return widen_all<std::uint64_t>(*this, out,
                                      [](std::uint64_t x) { return static_cast<double>(x); });
    case DType::field:
      throw std::logic_error("a residue modulo a prime is no real number; read it as u64");
    default:
      throw std::logic_error("a HostTensor holds scalar dtypes only");
  }
}

std::vector<double> HostTensor::to_f64() const {
  std::vector<double> out(static_cast<std::size_t>(elements()));
  widen(out);
  return out;
}

bool HostTensor::bitwise_equal(const HostTensor& other) const {
  if (dtype_ != other.dtype_ || shape_ != other.shape_) return false;
  const std::size_t count = bytes();
  return count == other.bytes() && (count == 0 || std::memcmp(data(), other.data(), count) == 0);
}

HostTensor round_to(DType dtype, std::vector<std::int64_t> shape, std::span<const double> values) {
  HostTensor tensor(dtype, std::move(shape));
  if (values.size() != static_cast<std::size_t>(tensor.elements())) {
    throw ShapeError(fmt::format("{} values for a tensor of shape {}", values.size(),
                                 to_string(tensor.shape())));
  }
  switch (dtype) {
    case DType::f64:
      round_all<double>(values, tensor, [](double x) { return x; });
      break;
    case DType::f32:
      round_all<float>(values, tensor, [](double x) { return static_cast<float>(x); });
      break;
    case DType::f16:
      round_all<std::uint16_t>(values, tensor, f64_to_f16);
      break;
    case DType::bf16:
      round_all<std::uint16_t>(values, tensor, f64_to_bf16);
      break;
    default:
      throw std::logic_error("round_to needs a floating dtype");
  }
  return tensor;
}

std::string to_string(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace shardcheck
