// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpu_device.hpp"

#include "kernels/cpu/host_device.hpp"
#include "kernels/cpu/primitives.hpp"

namespace shardcheck {
namespace {

class CpuDevice final : public cpu::HostDevice {
 public:
  std::string_view kind() const override { return "cpu"; }
  Arithmetic arithmetic(Primitive, DType storage) const override {
    const DType accumulate = accumulate_dtype(storage);
    return {.accumulate = accumulate, .fraction_bits = info(accumulate).precision};
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
  void do_square_sum(Stream&, const Tensor& x, const Tensor& out) override { cpu::square_sum(x, out); }
  void do_rms_apply(Stream&, const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features,
                    double eps, const Tensor& out) override {
    cpu::rms_apply(x, weight, squares, features, eps, out);
  }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace shardcheck
