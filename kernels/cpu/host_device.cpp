// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/host_device.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/cpu/memory.hpp"
#include "kernels/cpu/primitives.hpp"
#include "model/error.hpp"

namespace shardcheck::cpu {
namespace {

class HostEvent final : public Event {};

class Read final : public HostRead {
 public:
  explicit Read(HostTensor host) : host_(std::move(host)) {}
  HostTensor take() override { return std::move(host_); }

 private:
  HostTensor host_;
};

void check_matrix(std::string_view call, const HostTensor& host) {
  if (host.shape().size() == 1 || host.shape().size() == 2) return;
  throw ShapeError(fmt::format("{}: a device tensor is a vector or a matrix; got shape {}", call,
                               to_string(host.shape())));
}

}  // namespace

std::unique_ptr<Event> HostDevice::record(Stream&) { return std::make_unique<HostEvent>(); }

Tensor HostDevice::allocate(Stream&, DType dtype, std::int64_t rows, std::int64_t cols) {
  if (rows < 0 || cols < 0) {
    throw ShapeError(fmt::format("allocate: extents must not be negative; got [{}, {}]", rows, cols));
  }
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * element_size(dtype);
  return {.device = this,
          .storage = std::make_shared<CpuStorage>(pool_, bytes),
          .dtype = dtype,
          .rows = rows,
          .cols = cols,
          .row_stride = cols};
}

Tensor HostDevice::adopt(Stream&, const HostTensor& host) {
  check_matrix("adopt", host);
  return {.device = this,
          .storage = std::make_shared<CpuStorage>(host),
          .dtype = host.dtype(),
          .rows = host.rows(),
          .cols = host.cols(),
          .row_stride = host.cols()};
}

void HostDevice::upload(Stream& stream, const HostTensor& host, const Tensor& out) {
  check_writable("upload", out);
  copy(stream, adopt(stream, host), out);
}

std::unique_ptr<HostRead> HostDevice::start_read(Stream& stream, const Tensor& tensor) {
  check_here("to_host", tensor);
  HostTensor host(tensor.dtype, {tensor.rows, tensor.cols});
  if (tensor.elements() == 0) return std::make_unique<Read>(std::move(host));
  const Tensor dense = allocate(stream, tensor.dtype, tensor.rows, tensor.cols);
  cpu::copy(tensor, dense);
  std::memcpy(host.mutable_data(), address(dense, 0, 0), host.bytes());
  return std::make_unique<Read>(std::move(host));
}

void HostDevice::hash(Stream&, const Tensor& tensor, const Tensor& slots, std::int64_t index) {
  check_here("hash", tensor);
  check_here("hash", slots);
  if (slots.dtype != DType::u64 || slots.rows != 1 || index < 0 || index >= slots.cols) {
    throw ShapeError(
        fmt::format("hash: slots must be u64 [1, n] with n > index {}; got {} [{}, {}]", index,
                    name(slots.dtype), slots.rows, slots.cols));
  }
  *address_as<std::uint64_t>(slots, 0, index) = cpu::hash(tensor);
}

void HostDevice::poison(Stream&, const Tensor& out) {
  check_writable("poison", out);
  if (out.elements() > 0) cpu::poison(out);
}

void HostDevice::check_here(std::string_view call, const Tensor& tensor) const {
  if (tensor.device != this)
    throw ShapeError(fmt::format("{}: the tensor lives on another device", call));
}

void HostDevice::check_writable(std::string_view call, const Tensor& tensor) const {
  check_here(call, tensor);
  if (!static_cast<const CpuStorage&>(*tensor.storage).writable()) {
    throw ShapeError(fmt::format("{}: an adopted tensor is read only; copy it first", call));
  }
}

}  // namespace shardcheck::cpu
