// SPDX-License-Identifier: Apache-2.0
// A device that hands everything on to another one. Derived classes do a thing or two wrong.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/device.hpp"

namespace shardcheck::testing {

/// Tensors belong to the outer device; the inner one sees them as its own.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string_view kind() const override { return inner_->kind(); }
  bool has_values() const override { return inner_->has_values(); }
  bool returns_early() const override { return inner_->returns_early(); }
  bool shares_host_memory() const override { return inner_->shares_host_memory(); }
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
  Tensor adopt(Stream& stream, const HostTensor& host) override {
    return outside(inner_->adopt(stream, host));
  }
  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    inner_->upload(stream, host, inside(out));
  }
  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    return inner_->start_read(stream, inside(tensor));
  }
  void hash(Stream& stream, const Tensor& tensor, const Tensor& slots, std::int64_t index) override {
    inner_->hash(stream, inside(tensor), inside(slots), index);
  }
  void poison(Stream& stream, const Tensor& out) override { inner_->poison(stream, inside(out)); }
  HostTensor cosines(DType dtype, std::vector<std::int64_t> shape,
                     std::span<const double> angles) const override {
    return inner_->cosines(dtype, std::move(shape), angles);
  }
  HostTensor sines(DType dtype, std::vector<std::int64_t> shape,
                   std::span<const double> angles) const override {
    return inner_->sines(dtype, std::move(shape), angles);
  }

 protected:
  Device& inner() const { return *inner_; }
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

  void do_linear(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor* bias,
                 const Tensor& out) override {
    const Tensor its_bias = bias != nullptr ? inside(*bias) : Tensor{};
    inner_->linear(stream, inside(x), inside(weight), bias != nullptr ? &its_bias : nullptr,
                   inside(out));
  }
  void do_rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, double eps,
                   const Tensor& out) override {
    inner_->rms_norm(stream, inside(x), inside(weight), eps, inside(out));
  }
  void do_layer_norm(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps, const Tensor& out) override {
    inner_->layer_norm(stream, inside(x), inside(weight), inside(bias), eps, inside(out));
  }
  void do_rope(Stream& stream, const Tensor& x, const Tensor& cos, const Tensor& sin,
               std::int64_t head_dim, RopeConvention convention, const Tensor& out) override {
    inner_->rope(stream, inside(x), inside(cos), inside(sin), head_dim, convention, inside(out));
  }
  void do_attention_partial(Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v,
                            HeadMap heads, const AttentionShape& shape,
                            const AttentionState& out) override {
    inner_->attention_partial(stream, inside(q), inside(k), inside(v), heads, shape, inside(out));
  }
  void do_attention_merge(Stream& stream, const AttentionState& other,
                          const AttentionState& into) override {
    inner_->attention_merge(stream, inside(other), inside(into));
  }
  void do_attention_finish(Stream& stream, const AttentionState& state, std::int64_t head_dim,
                           const Tensor& out) override {
    inner_->attention_finish(stream, inside(state), head_dim, inside(out));
  }
  void do_gate(Stream& stream, const Tensor& gate, const Tensor& up, const Tensor& out) override {
    inner_->gate(stream, inside(gate), inside(up), inside(out));
  }
  void do_unary(Stream& stream, UnaryKind kind, const Tensor& x, const Tensor& out) override {
    inner_->unary(stream, kind, inside(x), inside(out));
  }
  void do_add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) override {
    inner_->add(stream, inside(a), inside(b), inside(out));
  }
  void do_bias(Stream& stream, const Tensor& x, const Tensor& bias, const Tensor& out) override {
    inner_->bias(stream, inside(x), inside(bias), inside(out));
  }
  void do_embedding(Stream& stream, const Tensor& ids, const Tensor& table, OwnedRanges owned,
                    const Tensor& out) override {
    inner_->embedding(stream, inside(ids), inside(table), owned, inside(out));
  }
  void do_cast(Stream& stream, const Tensor& in, const Tensor& out) override {
    inner_->cast(stream, inside(in), inside(out));
  }
  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    inner_->copy(stream, inside(in), inside(out));
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    std::vector<Tensor> its_terms;
    for (const Tensor& term : terms) its_terms.push_back(inside(term));
    inner_->reduce_n(stream, its_terms, spec, first, total, inside(out));
  }
  void do_add_rms_norm(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& weight,
                       double eps, const Tensor& sum, const Tensor& out) override {
    inner_->add_rms_norm(stream, inside(a), inside(b), inside(weight), eps, inside(sum), inside(out));
  }
  void do_argmax(Stream& stream, const Tensor& x, OwnedRanges owned, const Tensor& value,
                 const Tensor& index) override {
    inner_->argmax(stream, inside(x), owned, inside(value), inside(index));
  }
  void do_cross_entropy_partial(Stream& stream, const Tensor& logits, const Tensor& targets,
                                OwnedRanges owned, const CrossEntropyState& out) override {
    inner_->cross_entropy_partial(stream, inside(logits), inside(targets), owned, inside(out));
  }
  void do_cross_entropy_merge(Stream& stream, const CrossEntropyState& other,
                              const CrossEntropyState& into) override {
    inner_->cross_entropy_merge(stream, inside(other), inside(into));
  }
  void do_cross_entropy_finish(Stream& stream, const CrossEntropyState& state,
                               const Tensor& loss) override {
    inner_->cross_entropy_finish(stream, inside(state), inside(loss));
  }
  void do_square_sum(Stream& stream, const Tensor& x, const Tensor& out) override {
    inner_->square_sum(stream, inside(x), inside(out));
  }
  void do_rms_apply(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& squares,
                    std::int64_t features, double eps, const Tensor& out) override {
    inner_->rms_apply(stream, inside(x), inside(weight), inside(squares), features, eps, inside(out));
  }

 private:
  AttentionState inside(const AttentionState& state) {
    return {inside(state.max), inside(state.sum), inside(state.acc)};
  }
  CrossEntropyState inside(const CrossEntropyState& state) {
    return {inside(state.max), inside(state.sum), inside(state.target)};
  }
  std::unique_ptr<Device> inner_;
};

}  // namespace shardcheck::testing
