// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_device.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "kernels/cpu/memory.hpp"
#include "kernels/cpu/primitives.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

using cpu::CpuStorage;

/// Work is done before a call returns, so there is never anything to wait for.
class CpuStream final : public Stream {
 public:
  void synchronize() override {}
};

class CpuEvent final : public Event {};

class CpuRead final : public HostRead {
 public:
  explicit CpuRead(HostTensor host) : host_(std::move(host)) {}
  HostTensor take() override { return std::move(host_); }

 private:
  HostTensor host_;
};

class CpuDevice final : public Device {
 public:
  std::string_view kind() const override { return "cpu"; }
  bool has_values() const override { return true; }
  bool shares_host_memory() const override { return true; }
  Arithmetic arithmetic(Primitive, DType storage) const override {
    const DType accumulate = accumulate_dtype(storage);
    return {.accumulate = accumulate, .fraction_bits = info(accumulate).precision};
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  std::unique_ptr<Event> record(Stream&) override { return std::make_unique<CpuEvent>(); }
  void wait(Stream&, const Event&) override {}

  Tensor allocate(Stream&, DType dtype, std::int64_t rows, std::int64_t cols) override {
    if (rows < 0 || cols < 0) {
      throw ShapeError(fmt::format("allocate: extents must not be negative; got [{}, {}]", rows, cols));
    }
    const std::size_t bytes = static_cast<std::size_t>(rows * cols) * element_size(dtype);
    return {.device = this, .storage = std::make_shared<CpuStorage>(pool_, bytes), .dtype = dtype, .rows = rows,
            .cols = cols, .row_stride = cols};
  }

  Tensor adopt(Stream&, const HostTensor& host) override {
    check_matrix("adopt", host);
    return {.device = this, .storage = std::make_shared<CpuStorage>(host), .dtype = host.dtype(),
            .rows = host.rows(), .cols = host.cols(), .row_stride = host.cols()};
  }

  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    check_writable("upload", out);
    copy(stream, adopt(stream, host), out);
  }

  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    check_here("to_host", tensor);
    HostTensor host(tensor.dtype, {tensor.rows, tensor.cols});
    if (tensor.elements() == 0) return std::make_unique<CpuRead>(std::move(host));
    const Tensor dense = allocate(stream, tensor.dtype, tensor.rows, tensor.cols);
    cpu::copy(tensor, dense);
    std::memcpy(host.mutable_data(), cpu::address(dense, 0, 0), host.bytes());
    return std::make_unique<CpuRead>(std::move(host));
  }

  void hash(Stream&, const Tensor& tensor, const Tensor& slots, std::int64_t index) override {
    check_here("hash", tensor);
    check_here("hash", slots);
    if (slots.dtype != DType::u64 || slots.rows != 1 || index < 0 || index >= slots.cols) {
      throw ShapeError(fmt::format("hash: slots must be u64 [1, n] with n > index {}; got {} [{}, {}]", index,
                                   name(slots.dtype), slots.rows, slots.cols));
    }
    *cpu::address_as<std::uint64_t>(slots, 0, index) = cpu::hash(tensor);
  }

  void poison(Stream&, const Tensor& out) override {
    check_writable("poison", out);
    if (out.elements() > 0) cpu::poison(out);
  }

 protected:
  void do_linear(Stream&, const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out) override {
    cpu::linear(x, weight, bias, out);
  }
  void do_rms_norm(Stream&, const Tensor& x, const Tensor& weight, double eps, const Tensor& out) override {
    cpu::rms_norm(x, weight, eps, out);
  }
  void do_layer_norm(Stream&, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                     const Tensor& out) override {
    cpu::layer_norm(x, weight, bias, eps, out);
  }
  void do_rope(Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
               RopeConvention convention, const Tensor& out) override {
    cpu::rope(x, cos, sin, head_dim, convention, out);
  }
  void do_attention_partial(Stream&, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                            const AttentionShape& shape, const AttentionState& out) override {
    cpu::attention_partial(q, k, v, heads, shape, out);
  }
  void do_attention_merge(Stream&, const AttentionState& other, const AttentionState& into) override {
    cpu::attention_merge(other, into);
  }
  void do_attention_finish(Stream&, const AttentionState& state, std::int64_t head_dim, const Tensor& out) override {
    cpu::attention_finish(state, head_dim, out);
  }
  void do_gate(Stream&, const Tensor& gate, const Tensor& up, const Tensor& out) override { cpu::gate(gate, up, out); }
  void do_unary(Stream&, UnaryKind kind, const Tensor& x, const Tensor& out) override { cpu::unary(kind, x, out); }
  void do_add(Stream&, const Tensor& a, const Tensor& b, const Tensor& out) override { cpu::add(a, b, out); }
  void do_bias(Stream&, const Tensor& x, const Tensor& bias, const Tensor& out) override { cpu::bias(x, bias, out); }
  void do_embedding(Stream&, const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out) override {
    cpu::embedding(ids, table, owned, out);
  }
  void do_cast(Stream&, const Tensor& in, const Tensor& out) override { cpu::cast(in, out); }
  void do_copy(Stream&, const Tensor& in, const Tensor& out) override { cpu::copy(in, out); }
  void do_reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first,
                   std::int64_t total, const Tensor& out) override {
    cpu::reduce_n(terms, spec, first, total, out);
  }
  void do_add_rms_norm(Stream&, const Tensor& a, const Tensor& b, const Tensor& weight, double eps, const Tensor& sum,
                       const Tensor& out) override {
    cpu::add(a, b, sum);
    cpu::rms_norm(sum, weight, eps, out);
  }
  void do_argmax(Stream&, const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index) override {
    cpu::argmax(x, owned, value, index);
  }
  void do_cross_entropy_partial(Stream&, const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                                const CrossEntropyState& out) override {
    cpu::cross_entropy_partial(logits, targets, owned, out);
  }
  void do_cross_entropy_merge(Stream&, const CrossEntropyState& other, const CrossEntropyState& into) override {
    cpu::cross_entropy_merge(other, into);
  }
  void do_cross_entropy_finish(Stream&, const CrossEntropyState& state, const Tensor& loss) override {
    cpu::cross_entropy_finish(state, loss);
  }

 private:
  void check_here(std::string_view call, const Tensor& tensor) const {
    if (tensor.device != this) throw ShapeError(fmt::format("{}: the tensor lives on another device", call));
  }

  void check_writable(std::string_view call, const Tensor& tensor) const {
    check_here(call, tensor);
    if (!static_cast<const CpuStorage&>(*tensor.storage).writable()) {
      throw ShapeError(fmt::format("{}: an adopted tensor is read only; copy it first", call));
    }
  }

  static void check_matrix(std::string_view call, const HostTensor& host) {
    if (host.shape().size() == 1 || host.shape().size() == 2) return;
    throw ShapeError(fmt::format("{}: a device tensor is a vector or a matrix; got shape {}", call,
                                 to_string(host.shape())));
  }

  std::shared_ptr<cpu::BlockPool> pool_ = std::make_shared<cpu::BlockPool>();
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace shardcheck
