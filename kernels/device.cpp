// SPDX-License-Identifier: Apache-2.0
// The checking half of every primitive: what all kinds of device refuse in the same words.
#include "kernels/device.hpp"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <utility>

#include "model/error.hpp"

namespace shardcheck {
namespace {

struct Operand {
  std::string_view name;
  const Tensor* tensor;
};

/// Throws ShapeError "<primitive>: <rule>; <operand> <dtype> [rows, cols], ..." where a rule is broken.
class Check {
 public:
  Check(const Device& device, Primitive primitive) : device_(device), primitive_(name(primitive)) {}

  void rule(bool holds, std::string_view rule, std::initializer_list<Operand> operands) const {
    if (holds) return;
    std::string message = fmt::format("{}: {}; got", primitive_, rule);
    std::string_view separator = " ";
    for (const Operand& operand : operands) {
      const Tensor& t = *operand.tensor;
      message += fmt::format("{}{} {} [{}, {}]", separator, operand.name, name(t.dtype), t.rows, t.cols);
      separator = ", ";
    }
    throw ShapeError(message);
  }

  void here(std::initializer_list<Operand> operands) const {
    for (const Operand& operand : operands) {
      rule(operand.tensor->device == &device_, "every tensor must live on the device that is called", {operand});
    }
  }

  void floats(std::initializer_list<Operand> operands) const {
    here(operands);
    for (const Operand& operand : operands) {
      rule(device_.computes_in(operand.tensor->dtype), "every tensor must have a dtype that the device computes in",
           {operand});
    }
  }

  void same_dtype(Operand a, Operand b) const {
    rule(a.tensor->dtype == b.tensor->dtype, "both must have the same dtype", {a, b});
  }

  void same_shape(Operand a, Operand b) const {
    rule(a.tensor->rows == b.tensor->rows && a.tensor->cols == b.tensor->cols, "both must have the same shape",
         {a, b});
  }

  /// A vector along x's columns.
  void per_column(Operand x, Operand vector) const {
    rule(vector.tensor->rows == 1 && vector.tensor->cols == x.tensor->cols,
         "a vector must be [1, columns of the matrix]", {x, vector});
  }

  /// One value for each of x's rows.
  void per_row(Operand x, Operand column) const {
    rule(column.tensor->rows == x.tensor->rows && column.tensor->cols == 1, "must be [rows of x, 1]", {x, column});
  }

  /// Columns of one height, all floats of one dtype.
  void column_of(Operand first, std::initializer_list<Operand> others) const {
    floats({first});
    rule(first.tensor->cols == 1, "must have one column", {first});
    for (const Operand& other : others) {
      floats({other});
      same_dtype(first, other);
      same_shape(first, other);
    }
  }

  /// The global ranges of an operand's rows or columns.
  void owned(OwnedRanges ranges, std::int64_t extent, Operand operand) const {
    std::int64_t count = 0;
    for (const auto& [begin, end] : ranges) {
      rule(begin >= 0 && begin <= end, fmt::format("owned range [{}, {}) must be a range", begin, end), {operand});
      count += end - begin;
    }
    rule(count == extent, fmt::format("the owned ranges hold {} ids and must cover the operand's {}", count, extent),
         {operand});
  }

  /// Statistics of a storage dtype are kept in its accumulate dtype.
  void accumulates(Operand x, Operand state) const {
    rule(state.tensor->dtype == accumulate_dtype(x.tensor->dtype), "must be in the accumulate dtype of the storage",
         {x, state});
  }

 private:
  const Device& device_;
  std::string_view primitive_;
};

/// Shapes of an attention state for M rows and this many heads; head_dim is checked by the caller.
void check_state(const Check& check, const AttentionState& state) {
  check.floats({{"max", &state.max}, {"sum", &state.sum}, {"acc", &state.acc}});
  check.same_shape({"max", &state.max}, {"sum", &state.sum});
  check.same_dtype({"max", &state.max}, {"sum", &state.sum});
  check.same_dtype({"max", &state.max}, {"acc", &state.acc});
  check.rule(state.acc.rows == state.max.rows, "acc must have the rows of max",
             {{"max", &state.max}, {"acc", &state.acc}});
}

}  // namespace

std::string_view name(Primitive primitive) {
  switch (primitive) {
    case Primitive::linear: return "linear";
    case Primitive::rms_norm: return "rms_norm";
    case Primitive::layer_norm: return "layer_norm";
    case Primitive::rope: return "rope";
    case Primitive::attention: return "attention";
    case Primitive::gate: return "gate";
    case Primitive::unary: return "unary";
    case Primitive::add: return "add";
    case Primitive::bias: return "bias";
    case Primitive::embedding: return "embedding";
    case Primitive::cast: return "cast";
    case Primitive::copy: return "copy";
    case Primitive::reduce_n: return "reduce_n";
    case Primitive::add_rms_norm: return "add_rms_norm";
    case Primitive::argmax: return "argmax";
    case Primitive::cross_entropy: return "cross_entropy";
    case Primitive::square_sum: return "square_sum";
    case Primitive::rms_apply: return "rms_apply";
  }
  return "";
}

void Device::linear(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out) {
  const Check check(*this, Primitive::linear);
  check.floats({{"x", &x}, {"weight", &weight}, {"out", &out}});
  check.same_dtype({"x", &x}, {"weight", &weight});
  check.rule(weight.cols == x.cols, "weight must have as many columns as x", {{"x", &x}, {"weight", &weight}});
  check.rule(out.rows == x.rows && out.cols == weight.rows, "out must be [rows of x, rows of weight]",
             {{"x", &x}, {"weight", &weight}, {"out", &out}});
  if (bias != nullptr) {
    check.floats({{"bias", bias}});
    check.same_dtype({"x", &x}, {"bias", bias});
    check.per_column({"out", &out}, {"bias", bias});
  }
  if (out.elements() > 0) do_linear(stream, x, weight, bias, out);
}

void Device::rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, double eps, const Tensor& out) {
  const Check check(*this, Primitive::rms_norm);
  check.floats({{"x", &x}, {"weight", &weight}, {"out", &out}});
  check.same_dtype({"x", &x}, {"weight", &weight});
  check.per_column({"x", &x}, {"weight", &weight});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_rms_norm(stream, x, weight, eps, out);
}

void Device::layer_norm(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        const Tensor& out) {
  const Check check(*this, Primitive::layer_norm);
  check.floats({{"x", &x}, {"weight", &weight}, {"bias", &bias}, {"out", &out}});
  check.same_dtype({"x", &x}, {"weight", &weight});
  check.same_dtype({"x", &x}, {"bias", &bias});
  check.per_column({"x", &x}, {"weight", &weight});
  check.per_column({"x", &x}, {"bias", &bias});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_layer_norm(stream, x, weight, bias, eps, out);
}

void Device::rope(Stream& stream, const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
                  RopeConvention convention, const Tensor& out) {
  const Check check(*this, Primitive::rope);
  check.floats({{"x", &x}, {"cos", &cos}, {"sin", &sin}, {"out", &out}});
  check.rule(head_dim > 0 && head_dim % 2 == 0 && x.cols % head_dim == 0,
             fmt::format("x's columns must be whole heads of an even head_dim (here {})", head_dim), {{"x", &x}});
  check.same_shape({"cos", &cos}, {"sin", &sin});
  check.rule(cos.rows == x.rows && cos.cols == head_dim / 2,
             fmt::format("cos must be [rows of x, head_dim / 2] (head_dim {})", head_dim), {{"x", &x}, {"cos", &cos}});
  check.accumulates({"x", &x}, {"cos", &cos});
  check.accumulates({"x", &x}, {"sin", &sin});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_rope(stream, x, cos, sin, head_dim, convention, out);
}

void Device::attention_partial(Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                               const AttentionShape& shape, const AttentionState& out) {
  const Check check(*this, Primitive::attention);
  check.floats({{"q", &q}, {"k", &k}, {"v", &v}});
  check.same_dtype({"q", &q}, {"k", &k});
  check.same_dtype({"q", &q}, {"v", &v});
  check.same_shape({"k", &k}, {"v", &v});
  const auto num_heads = static_cast<std::int64_t>(heads.size());
  check.rule(shape.head_dim > 0 && q.cols == num_heads * shape.head_dim,
             fmt::format("q must hold {} heads of {}", num_heads, shape.head_dim), {{"q", &q}});
  check.rule(k.cols % shape.head_dim == 0, fmt::format("k must hold whole heads of {}", shape.head_dim), {{"k", &k}});
  for (const std::int32_t kv_head : heads) {
    check.rule(kv_head >= 0 && kv_head < k.cols / shape.head_dim,
               fmt::format("kv head {} of the head map must be one of k's", kv_head), {{"q", &q}, {"k", &k}});
  }
  check_state(check, out);
  check.rule(out.max.rows == q.rows && out.max.cols == num_heads,
             fmt::format("max must be [rows of q, {} heads]", num_heads), {{"q", &q}, {"max", &out.max}});
  check.same_shape({"q", &q}, {"acc", &out.acc});
  check.accumulates({"q", &q}, {"max", &out.max});
  if (q.elements() > 0) do_attention_partial(stream, q, k, v, heads, shape, out);
}

void Device::attention_merge(Stream& stream, const AttentionState& other, const AttentionState& into) {
  const Check check(*this, Primitive::attention);
  check_state(check, other);
  check_state(check, into);
  check.same_dtype({"other.max", &other.max}, {"into.max", &into.max});
  check.same_shape({"other.max", &other.max}, {"into.max", &into.max});
  check.same_shape({"other.acc", &other.acc}, {"into.acc", &into.acc});
  if (into.acc.elements() > 0) do_attention_merge(stream, other, into);
}

void Device::attention_finish(Stream& stream, const AttentionState& state, std::int64_t head_dim, const Tensor& out) {
  const Check check(*this, Primitive::attention);
  check_state(check, state);
  check.floats({{"out", &out}});
  check.rule(state.acc.cols == state.max.cols * head_dim, fmt::format("acc must hold heads of {}", head_dim),
             {{"max", &state.max}, {"acc", &state.acc}});
  check.same_shape({"acc", &state.acc}, {"out", &out});
  if (out.elements() > 0) do_attention_finish(stream, state, head_dim, out);
}

void Device::gate(Stream& stream, const Tensor& gate, const Tensor& up, const Tensor& out) {
  const Check check(*this, Primitive::gate);
  check.floats({{"gate", &gate}, {"up", &up}, {"out", &out}});
  check.same_dtype({"gate", &gate}, {"up", &up});
  check.same_shape({"gate", &gate}, {"up", &up});
  check.same_shape({"gate", &gate}, {"out", &out});
  if (out.elements() > 0) do_gate(stream, gate, up, out);
}

void Device::unary(Stream& stream, UnaryKind kind, const Tensor& x, const Tensor& out) {
  const Check check(*this, Primitive::unary);
  check.floats({{"x", &x}, {"out", &out}});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_unary(stream, kind, x, out);
}

void Device::add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) {
  const Check check(*this, Primitive::add);
  check.floats({{"a", &a}, {"b", &b}, {"out", &out}});
  check.same_dtype({"a", &a}, {"b", &b});
  check.same_shape({"a", &a}, {"b", &b});
  check.same_shape({"a", &a}, {"out", &out});
  if (out.elements() > 0) do_add(stream, a, b, out);
}

void Device::bias(Stream& stream, const Tensor& x, const Tensor& bias, const Tensor& out) {
  const Check check(*this, Primitive::bias);
  check.floats({{"x", &x}, {"bias", &bias}, {"out", &out}});
  check.same_dtype({"x", &x}, {"bias", &bias});
  check.per_column({"x", &x}, {"bias", &bias});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_bias(stream, x, bias, out);
}

void Device::embedding(Stream& stream, const Tensor& ids, const Tensor& table,
                       OwnedRanges owned, const Tensor& out) {
  const Check check(*this, Primitive::embedding);
  check.here({{"ids", &ids}});
  check.floats({{"table", &table}, {"out", &out}});
  check.rule(ids.dtype == DType::i64 && ids.rows == 1, "ids must be i64 [1, tokens]", {{"ids", &ids}});
  check.rule(out.rows == ids.cols && out.cols == table.cols, "out must be [tokens, columns of the table]",
             {{"ids", &ids}, {"table", &table}, {"out", &out}});
  check.owned(owned, table.rows, {"table", &table});
  if (out.elements() > 0) do_embedding(stream, ids, table, owned, out);
}

void Device::cast(Stream& stream, const Tensor& in, const Tensor& out) {
  const Check check(*this, Primitive::cast);
  check.floats({{"in", &in}, {"out", &out}});
  check.same_shape({"in", &in}, {"out", &out});
  if (out.elements() > 0) do_cast(stream, in, out);
}

void Device::copy(Stream& stream, const Tensor& in, const Tensor& out) {
  const Check check(*this, Primitive::copy);
  check.here({{"in", &in}, {"out", &out}});
  check.same_dtype({"in", &in}, {"out", &out});
  check.same_shape({"in", &in}, {"out", &out});
  if (out.elements() > 0) do_copy(stream, in, out);
}

void Device::reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first,
                      std::int64_t total, const Tensor& out) {
  const Check check(*this, Primitive::reduce_n);
  check.floats({{"out", &out}});
  check.rule(!terms.empty(), "there must be at least one term", {{"out", &out}});
  check.rule(out.contiguous(), "out must be contiguous", {{"out", &out}});
  for (const Tensor& term : terms) {
    check.here({{"term", &term}});
    check.same_dtype({"term", &term}, {"out", &out});
    check.same_shape({"term", &term}, {"out", &out});
    check.rule(term.contiguous(), "every term must be contiguous", {{"term", &term}});
  }
  check.rule(first >= 0 && first + out.elements() <= total,
             fmt::format("elements from {} on must lie in a tensor of {}", first, total), {{"out", &out}});
  if (out.elements() > 0) do_reduce_n(stream, terms, spec, first, total, out);
}

void Device::add_rms_norm(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& weight, double eps,
                          const Tensor& sum, const Tensor& out) {
  const Check check(*this, Primitive::add_rms_norm);
  check.floats({{"a", &a}, {"b", &b}, {"weight", &weight}, {"sum", &sum}, {"out", &out}});
  check.same_dtype({"a", &a}, {"b", &b});
  check.same_dtype({"a", &a}, {"weight", &weight});
  check.same_dtype({"a", &a}, {"sum", &sum});
  check.same_shape({"a", &a}, {"b", &b});
  check.same_shape({"a", &a}, {"sum", &sum});
  check.same_shape({"a", &a}, {"out", &out});
  check.per_column({"a", &a}, {"weight", &weight});
  if (out.elements() > 0) do_add_rms_norm(stream, a, b, weight, eps, sum, out);
}

void Device::argmax(Stream& stream, const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index) {
  const Check check(*this, Primitive::argmax);
  check.floats({{"x", &x}, {"value", &value}});
  check.here({{"index", &index}});
  check.owned(owned, x.cols, {"x", &x});
  check.per_row({"x", &x}, {"value", &value});
  check.per_row({"x", &x}, {"index", &index});
  check.accumulates({"x", &x}, {"value", &value});
  check.rule(index.dtype == DType::i64, "index must be i64", {{"index", &index}});
  if (value.elements() > 0) do_argmax(stream, x, owned, value, index);
}

void Device::cross_entropy_partial(Stream& stream, const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                                   const CrossEntropyState& out) {
  const Check check(*this, Primitive::cross_entropy);
  check.floats({{"logits", &logits}, {"max", &out.max}, {"sum", &out.sum}, {"target", &out.target}});
  check.here({{"targets", &targets}});
  check.owned(owned, logits.cols, {"logits", &logits});
  check.rule(targets.dtype == DType::i64 && targets.rows == 1 && targets.cols == logits.rows,
             "targets must be i64 [1, rows of logits]", {{"logits", &logits}, {"targets", &targets}});
  for (const Operand& state : {Operand{"max", &out.max}, Operand{"sum", &out.sum}, Operand{"target", &out.target}}) {
    check.per_row({"logits", &logits}, state);
    check.accumulates({"logits", &logits}, state);
  }
  if (out.max.elements() > 0) do_cross_entropy_partial(stream, logits, targets, owned, out);
}

void Device::cross_entropy_merge(Stream& stream, const CrossEntropyState& other, const CrossEntropyState& into) {
  const Check check(*this, Primitive::cross_entropy);
  check.column_of({"into.max", &into.max}, {{"into.sum", &into.sum}, {"into.target", &into.target},
                                            {"other.max", &other.max}, {"other.sum", &other.sum},
                                            {"other.target", &other.target}});
  if (into.max.elements() > 0) do_cross_entropy_merge(stream, other, into);
}

void Device::cross_entropy_finish(Stream& stream, const CrossEntropyState& state, const Tensor& loss) {
  const Check check(*this, Primitive::cross_entropy);
  check.column_of({"max", &state.max}, {{"sum", &state.sum}, {"target", &state.target}, {"loss", &loss}});
  if (loss.elements() > 0) do_cross_entropy_finish(stream, state, loss);
}

HostTensor Device::cosines(DType dtype, std::vector<std::int64_t> shape, std::span<const double> angles) const {
  std::vector<double> values(angles.begin(), angles.end());
  for (double& value : values) value = std::cos(value);
  return round_to(dtype, std::move(shape), values);
}

HostTensor Device::sines(DType dtype, std::vector<std::int64_t> shape, std::span<const double> angles) const {
  std::vector<double> values(angles.begin(), angles.end());
  for (double& value : values) value = std::sin(value);
  return round_to(dtype, std::move(shape), values);
}

void Device::square_sum(Stream& stream, const Tensor& x, const Tensor& out) {
  const Check check(*this, Primitive::square_sum);
  check.floats({{"x", &x}, {"out", &out}});
  check.per_row({"x", &x}, {"out", &out});
  check.accumulates({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_square_sum(stream, x, out);
}

void Device::rms_apply(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& squares,
                       std::int64_t features, double eps, const Tensor& out) {
  const Check check(*this, Primitive::rms_apply);
  check.floats({{"x", &x}, {"weight", &weight}, {"squares", &squares}, {"out", &out}});
  check.same_dtype({"x", &x}, {"weight", &weight});
  check.per_column({"x", &x}, {"weight", &weight});
  check.per_row({"x", &x}, {"squares", &squares});
  check.accumulates({"x", &x}, {"squares", &squares});
  check.rule(features >= x.cols, fmt::format("the whole row must be at least as long as x's (here {})", features),
             {{"x", &x}});
  check.same_shape({"x", &x}, {"out", &out});
  if (out.elements() > 0) do_rms_apply(stream, x, weight, squares, features, eps, out);
}

}  // namespace shardcheck
