// SPDX-License-Identifier: Apache-2.0
// A device around another one: for tests that change how the communicators' calls reach it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/device.hpp"
#include "model/error.hpp"

namespace shardcheck::testing {

/// Passes on what communicators need; other primitives throw.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string_view kind() const override { return inner_->kind(); }
  bool has_values() const override { return inner_->has_values(); }
  bool returns_early() const override { return inner_->returns_early(); }
  std::mutex* turn() override { return inner_->turn(); }
  Arithmetic arithmetic(Primitive primitive, DType storage) const override {
    return inner_->arithmetic(primitive, storage);
  }

  std::unique_ptr<Stream> make_stream() override { return inner_->make_stream(); }
  Tensor allocate(Stream& stream, DType dtype, std::int64_t rows, std::int64_t cols) override {
    return outside(inner_->allocate(stream, dtype, rows, cols));
  }
  std::unique_ptr<Event> record(Stream& stream) override { return inner_->record(stream); }
  void wait(Stream& stream, const Event& event) override { inner_->wait(stream, event); }
  Tensor adopt(Stream&, const HostTensor&) override { throw unused(); }
  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    inner_->upload(stream, host, inside(out));
  }
  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    return inner_->start_read(stream, inside(tensor));
  }
  void hash(Stream&, const Tensor&, const Tensor&, std::int64_t) override { throw unused(); }
  void poison(Stream& stream, const Tensor& out) override { inner_->poison(stream, inside(out)); }

 protected:
  using Operands = const Tensor&;

  Device& inner() { return *inner_; }
  /// The same tensor as the inner device's, and back.
  virtual Tensor inside(const Tensor& tensor) {
    Tensor result = tensor;
    result.device = inner_.get();
    return result;
  }
  Tensor outside(Tensor tensor) {
    tensor.device = this;
    return tensor;
  }
  static std::logic_error unused() { return std::logic_error("no communicator calls this"); }

  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    inner_->copy(stream, inside(in), inside(out));
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    std::vector<Tensor> inner_terms;
    for (const Tensor& term : terms) inner_terms.push_back(inside(term));
    inner_->reduce_n(stream, inner_terms, spec, first, total, inside(out));
  }

  void do_linear(Stream&, Operands, Operands, const Tensor*, Operands) override { throw unused(); }
  void do_rms_norm(Stream&, Operands, Operands, double, Operands) override { throw unused(); }
  void do_layer_norm(Stream&, Operands, Operands, Operands, double, Operands) override {
    throw unused();
  }
  void do_rope(Stream&, Operands, Operands, Operands, std::int64_t, RopeConvention, Operands) override {
    throw unused();
  }
  void do_attention_partial(Stream&, Operands, Operands, Operands, HeadMap, const AttentionShape&,
                            const AttentionState&) override {
    throw unused();
  }
  void do_attention_merge(Stream&, const AttentionState&, const AttentionState&) override {
    throw unused();
  }
  void do_attention_finish(Stream&, const AttentionState&, std::int64_t, Operands) override {
    throw unused();
  }
  void do_gate(Stream&, Operands, Operands, Operands) override { throw unused(); }
  void do_unary(Stream&, UnaryKind, Operands, Operands) override { throw unused(); }
  void do_add(Stream&, Operands, Operands, Operands) override { throw unused(); }
  void do_bias(Stream&, Operands, Operands, Operands) override { throw unused(); }
  void do_embedding(Stream&, Operands, Operands, OwnedRanges, Operands) override { throw unused(); }
  void do_cast(Stream&, Operands, Operands) override { throw unused(); }
  void do_add_rms_norm(Stream&, Operands, Operands, Operands, double, Operands, Operands) override {
    throw unused();
  }
  void do_argmax(Stream&, Operands, OwnedRanges, Operands, Operands) override { throw unused(); }
  void do_cross_entropy_partial(Stream&, Operands, Operands, OwnedRanges,
                                const CrossEntropyState&) override {
    throw unused();
  }
  void do_cross_entropy_merge(Stream&, const CrossEntropyState&, const CrossEntropyState&) override {
    throw unused();
  }
  void do_cross_entropy_finish(Stream&, const CrossEntropyState&, Operands) override {
    throw unused();
  }

 private:
  std::unique_ptr<Device> inner_;
};

/// Drops the n-th call of wait, counted over all streams from 0: a missing event between ranks.
class ForgetfulDevice final : public WrappedDevice {
 public:
  ForgetfulDevice(std::unique_ptr<Device> inner, int dropped)
      : WrappedDevice(std::move(inner)), dropped_(dropped) {}

  void wait(Stream& stream, const Event& event) override {
    if (waits_++ != dropped_) WrappedDevice::wait(stream, event);
  }
  int waits() const { return waits_; }

 private:
  const int dropped_;
  std::atomic<int> waits_ = 0;
};

/// Throws at the n-th call of record, wait, copy or reduce_n, counted from 0.
class FailingDevice final : public WrappedDevice {
 public:
  FailingDevice(std::unique_ptr<Device> inner, int fails_at)
      : WrappedDevice(std::move(inner)), fails_at_(fails_at) {}

  std::unique_ptr<Event> record(Stream& stream) override {
    count();
    return WrappedDevice::record(stream);
  }
  void wait(Stream& stream, const Event& event) override {
    count();
    WrappedDevice::wait(stream, event);
  }
  int calls() const { return calls_; }

 protected:
  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    count();
    WrappedDevice::do_copy(stream, in, out);
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    count();
    WrappedDevice::do_reduce_n(stream, terms, spec, first, total, out);
  }

 private:
  void count() {
    if (calls_++ == fails_at_) throw DeviceError("the device fell over");
  }

  const int fails_at_;
  std::atomic<int> calls_ = 0;
};

}  // namespace shardcheck::testing
