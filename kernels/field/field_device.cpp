// SPDX-License-Identifier: Apache-2.0
#include "kernels/field/field_device.hpp"

#include <algorithm>
#include <string>

#include "kernels/cpu/primitives.hpp"
#include "kernels/field/primitives.hpp"
#include "kernels/field/sites.hpp"

namespace shardcheck {
namespace {

using field::Function;
using field::Hash;
using field::Inverter;

/// How many inversions and linear layers a rank's values have behind them.
class FieldStream final : public cpu::HostStream {
 public:
  void add_linear() { ++linears_; }
  void add_inversions(int n) { inversions_ += n; }
  /// Of an argument as a ratio of polynomials in the random elements. What comes first counts as a linear layer.
  std::int64_t degree() const { return 2 * inversions_ + 4 * (linears_ + 1); }

 private:
  std::int64_t linears_ = 0, inversions_ = 0;
};

FieldStream& depth(Stream& stream) { return static_cast<FieldStream&>(stream); }

template <typename Given>
HostTensor table(DType dtype, std::vector<std::int64_t> shape, std::span<const double> angles, Given given) {
  HostTensor result(dtype, std::move(shape));
  std::transform(angles.begin(), angles.end(), result.as_mutable<field::Residue>().begin(), given);
  return result;
}

}  // namespace

template <typename Body>
void FieldDevice::with_hash(Stream& stream, Function function, Body body) {
  const std::string site(field::current_site());
  const std::int64_t degree = depth(stream).degree();  // of the arguments, before what the body inverts
  Hash hash(seed_, name(function), site);
  body(hash);
  counts_.add(function, site, hash.calls(), degree);
}

template <typename Body>
void FieldDevice::with_inverter(Stream& stream, int inversions, Body body) {
  Inverter invert;
  body(invert);
  counts_.add_zero_denominators(invert.zeros);
  depth(stream).add_inversions(inversions);
}

NamedRange FieldDevice::range(std::string_view name) { return field::enter_site(name); }

HostTensor FieldDevice::cosines(DType dtype, std::vector<std::int64_t> shape,
                                std::span<const double> angles) const {
  return table(dtype, std::move(shape), angles, [this](double a) { return givens_.cosine(a); });
}
HostTensor FieldDevice::sines(DType dtype, std::vector<std::int64_t> shape,
                              std::span<const double> angles) const {
  return table(dtype, std::move(shape), angles, [this](double a) { return givens_.sine(a); });
}

std::unique_ptr<Stream> FieldDevice::make_stream() { return std::make_unique<FieldStream>(); }

void FieldDevice::do_linear(Stream& stream, const Tensor& x, const Tensor& weight,
                            const Tensor* bias, const Tensor& out) {
  field::linear(x, weight, bias, out);
  depth(stream).add_linear();
}

void FieldDevice::do_rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, double eps,
                              const Tensor& out) {
  with_hash(stream, Function::rsqrt,
            [&](Hash& rsqrt) { field::rms_norm(x, weight, givens_.constant(eps), rsqrt, out); });
}

void FieldDevice::do_layer_norm(Stream& stream, const Tensor& x, const Tensor& weight,
                                const Tensor& bias, double eps, const Tensor& out) {
  with_hash(stream, Function::rsqrt, [&](Hash& rsqrt) {
    field::layer_norm(x, weight, bias, givens_.constant(eps), rsqrt, out);
  });
}

void FieldDevice::do_rope(Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin,
                          std::int64_t head_dim, RopeConvention convention, const Tensor& out) {
  field::rope(x, cos, sin, head_dim, convention, out);
}

void FieldDevice::do_attention_partial(Stream& stream, const Tensor& q, const Tensor& k,
                                       const Tensor& v, HeadMap heads, const AttentionShape& shape,
                                       const AttentionState& out) {
  const field::Residue scale = givens_.constant(shape.scale);
  with_hash(stream, Function::exp, [&](Hash& exp) {
    with_inverter(stream, 1, [&](Inverter& invert) {
      field::attention_partial(q, k, v, heads, shape, scale, exp, invert, out);
    });
  });
}

void FieldDevice::do_attention_merge(Stream& stream, const AttentionState& other,
                                     const AttentionState& into) {
  with_hash(stream, Function::exp, [&](Hash& exp) {
    with_inverter(stream, 1,
                  [&](Inverter& invert) { field::attention_merge(other, exp, invert, into); });
  });
}

void FieldDevice::do_attention_finish(Stream& stream, const AttentionState& state,
                                      std::int64_t head_dim, const Tensor& out) {
  with_inverter(stream, 1,
                [&](Inverter& invert) { field::attention_finish(state, head_dim, invert, out); });
}

void FieldDevice::do_gate(Stream& stream, const Tensor& gate, const Tensor& up, const Tensor& out) {
  with_hash(stream, Function::sigmoid, [&](Hash& sigmoid) { field::gate(gate, up, sigmoid, out); });
}

void FieldDevice::do_unary(Stream& stream, UnaryKind kind, const Tensor& x, const Tensor& out) {
  with_hash(stream, kind == UnaryKind::silu ? Function::sigmoid : Function::phi,
            [&](Hash& f) { field::unary(x, f, out); });
}

void FieldDevice::do_add(Stream&, const Tensor& a, const Tensor& b, const Tensor& out) {
  field::add(a, b, out);
}

void FieldDevice::do_bias(Stream&, const Tensor& x, const Tensor& bias, const Tensor& out) {
  field::bias(x, bias, out);
}

void FieldDevice::do_embedding(Stream& stream, const Tensor& ids, const Tensor& table,
                               OwnedRanges owned, const Tensor& out) {
  field::embedding(ids, table, owned, out);
  depth(stream).add_linear();
}

void FieldDevice::do_cast(Stream&, const Tensor& in, const Tensor& out) { cpu::copy(in, out); }
void FieldDevice::do_copy(Stream&, const Tensor& in, const Tensor& out) { cpu::copy(in, out); }

void FieldDevice::do_reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec,
                              std::int64_t, std::int64_t, const Tensor& out) {
  field::reduce_n(terms, spec.op, out);
}

void FieldDevice::do_add_rms_norm(Stream& stream, const Tensor& a, const Tensor& b,
                                  const Tensor& weight, double eps, const Tensor& sum,
                                  const Tensor& out) {
  field::add(a, b, sum);
  do_rms_norm(stream, sum, weight, eps, out);
}

void FieldDevice::do_argmax(Stream&, const Tensor& x, OwnedRanges owned, const Tensor& value,
                            const Tensor& index) {
  field::argmax(x, owned, value, index);
}

void FieldDevice::do_cross_entropy_partial(Stream& stream, const Tensor& logits, const Tensor& targets,
                                           OwnedRanges owned, const CrossEntropyState& out) {
  with_hash(stream, Function::exp, [&](Hash& exp) {
    with_inverter(stream, 1, [&](Inverter& invert) {
      field::cross_entropy_partial(logits, targets, owned, exp, invert, out);
    });
  });
}

void FieldDevice::do_cross_entropy_merge(Stream& stream, const CrossEntropyState& other,
                                         const CrossEntropyState& into) {
  with_hash(stream, Function::exp, [&](Hash& exp) {
    with_inverter(stream, 1,
                  [&](Inverter& invert) { field::cross_entropy_merge(other, exp, invert, into); });
  });
}

void FieldDevice::do_cross_entropy_finish(Stream& stream, const CrossEntropyState& state,
                                          const Tensor& loss) {
  with_hash(stream, Function::log, [&](Hash& log) {
    with_hash(stream, Function::exp,
              [&](Hash& exp) { field::cross_entropy_finish(state, exp, log, loss); });
  });
}

void FieldDevice::do_square_sum(Stream&, const Tensor& x, const Tensor& out) {
  field::square_sum(x, out);
}

void FieldDevice::do_rms_apply(Stream& stream, const Tensor& x, const Tensor& weight,
                               const Tensor& squares, std::int64_t features, double eps,
                               const Tensor& out) {
  with_hash(stream, Function::rsqrt, [&](Hash& rsqrt) {
    field::rms_apply(x, weight, squares, features, givens_.constant(eps), rsqrt, out);
  });
}

}  // namespace shardcheck
