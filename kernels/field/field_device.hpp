// SPDX-License-Identifier: Apache-2.0
// A device that computes with integers modulo p = 2^61 - 1 in place of real numbers. Sums, products and quotients are
// exact there and every other function is a random one, so two programs that compute the same thing agree in every
// bit, whatever their order of summation, and two that don't disagree, but for a chance that is counted.
//
// Storage, wire and accumulate dtype are all DType::field: a cast is a copy. A word that is no residue is poison.
// A random function is keyed by the device's seed, by its name, by the place in the model and by its exact argument,
// never by rank. The place is the innermost Device::range of the calling thread; name it by the module path, which the
// sharded and the unsharded program share. Names of taps work too: the endings .partial, .reduced and .reduced.N are
// taken off. The range must not be named by a fused instruction's first output, which is another op's.
//
// All ranks share one device. A rank's stream counts how deep its values are, for the degree bound.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/cpu/host_device.hpp"
#include "kernels/field/counts.hpp"
#include "kernels/field/hash.hpp"

namespace shardcheck {

class FieldDevice final : public cpu::HostDevice {
 public:
  explicit FieldDevice(std::uint64_t seed) : seed_(seed), givens_(seed) {}

  /// Random functions called so far, thread safe. Sharded and unsharded runs on one device add up, as the bound wants.
  const field::Counts& counts() const { return counts_; }
  /// What stands for a scalar constant, and for the cosine and sine of an angle in radians (the tables of rope).
  const field::Givens& givens() const { return givens_; }
  /// Element `index` (flat, in the whole tensor) of a weight or input is elements(canonical name).at(index).
  field::Hash elements(std::string_view canonical_name) const {
    return field::elements_of(seed_, canonical_name);
  }

  std::string_view kind() const override { return "field"; }
  bool computes_in(DType dtype) const override { return dtype == DType::field; }
  Arithmetic arithmetic(Primitive, DType) const override {
    return {.accumulate = DType::field, .fraction_bits = 61};
  }
  NamedRange range(std::string_view name) override;
  HostTensor cosines(DType dtype, std::vector<std::int64_t> shape,
                     std::span<const double> angles) const override;
  HostTensor sines(DType dtype, std::vector<std::int64_t> shape,
                   std::span<const double> angles) const override;
  std::unique_ptr<Stream> make_stream() override;

 protected:
  void do_linear(Stream&, const Tensor& x, const Tensor& weight, const Tensor* bias,
                 const Tensor& out) override;
  void do_rms_norm(Stream&, const Tensor& x, const Tensor& weight, double eps,
                   const Tensor& out) override;
  void do_layer_norm(Stream&, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                     const Tensor& out) override;
  void do_rope(Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin,
               std::int64_t head_dim, RopeConvention convention, const Tensor& out) override;
  void do_attention_partial(Stream&, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                            const AttentionShape& shape, const AttentionState& out) override;
  void do_attention_merge(Stream&, const AttentionState& other, const AttentionState& into) override;
  void do_attention_finish(Stream&, const AttentionState& state, std::int64_t head_dim,
                           const Tensor& out) override;
  void do_gate(Stream&, const Tensor& gate, const Tensor& up, const Tensor& out) override;
  void do_unary(Stream&, UnaryKind kind, const Tensor& x, const Tensor& out) override;
  void do_add(Stream&, const Tensor& a, const Tensor& b, const Tensor& out) override;
  void do_bias(Stream&, const Tensor& x, const Tensor& bias, const Tensor& out) override;
  void do_embedding(Stream&, const Tensor& ids, const Tensor& table, OwnedRanges owned,
                    const Tensor& out) override;
  void do_cast(Stream&, const Tensor& in, const Tensor& out) override;
  void do_copy(Stream&, const Tensor& in, const Tensor& out) override;
  void do_reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override;
  void do_add_rms_norm(Stream&, const Tensor& a, const Tensor& b, const Tensor& weight, double eps,
                       const Tensor& sum, const Tensor& out) override;
  void do_argmax(Stream&, const Tensor& x, OwnedRanges owned, const Tensor& value,
                 const Tensor& index) override;
  void do_cross_entropy_partial(Stream&, const Tensor& logits, const Tensor& targets,
                                OwnedRanges owned, const CrossEntropyState& out) override;
  void do_cross_entropy_merge(Stream&, const CrossEntropyState& other,
                              const CrossEntropyState& into) override;
  void do_cross_entropy_finish(Stream&, const CrossEntropyState& state, const Tensor& loss) override;
  void do_square_sum(Stream&, const Tensor& x, const Tensor& out) override;
  void do_rms_apply(Stream&, const Tensor& x, const Tensor& weight, const Tensor& squares,
                    std::int64_t features, double eps, const Tensor& out) override;

 private:
  /// body(H(function, this thread's site, .)), whose calls are counted with the stream's present degree.
  template <typename Body>
  void with_hash(Stream& stream, field::Function function, Body body);
  /// body(invert), whose zeros are counted; a value's depth grows by `inversions`.
  template <typename Body>
  void with_inverter(Stream& stream, int inversions, Body body);

  const std::uint64_t seed_;
  const field::Givens givens_;
  field::Counts counts_;
};

}  // namespace shardcheck
