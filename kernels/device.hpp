// SPDX-License-Identifier: Apache-2.0
// Device: memory, streams and the primitives that every op is made of. One interface, several kinds
// (cpu, meta, later cuda, emu, field); nothing above this header knows which one runs.
//
// Rules that hold for every primitive:
//  - it is enqueued on a stream and may return before it has run; numbers are seen only through to_host;
//  - shapes and dtypes are checked when it is called: a mismatch throws ShapeError naming the primitive and both;
//  - extents of 0 are legal and do nothing;
//  - values are computed in accumulate_dtype(storage) and rounded once (RNE) into out.dtype;
//  - out never overlaps an input, unless it says so;
//  - the bits of a result depend on shapes, values and dtypes alone, never on alignment, thread or rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/reduction.hpp"
#include "kernels/tensor.hpp"
#include "model/host_tensor.hpp"

namespace shardcheck {

/// An in-order queue of work on one device. A rank has one.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void synchronize() = 0;
};

enum class Primitive {
  linear,
  rms_norm,
  layer_norm,
  rope,
  attention,
  gate,
  unary,
  add,
  bias,
  embedding,
  cast,
  copy,
  reduce_n
};
std::string_view name(Primitive primitive);

/// How a device computes a primitive in a storage dtype. The error budget is derived from this statement and
/// reports print it.
struct Arithmetic {
  DType accumulate = DType::f32;
  bool truncating = false;  // accumulator rounds towards zero instead of RNE
  int fraction_bits = 24;   // significand bits kept in the accumulator
  int block_k = 0;          // products summed exactly before one rounding (tensor cores); 0: none
  bool rounds_softmax_weights = false;  // weights rounded to storage before the product with V
};

enum class RopeConvention { half_split, interleaved };  // pairs (i, i + d/2) or (2i, 2i + 1)
enum class UnaryKind { silu, gelu_tanh };

/// Which local kv head serves each local q head. An explicit list, never a ratio: uneven cuts need it.
using HeadMap = std::span<const std::int32_t>;

/// One stretch of keys for one sequence: queries at positions q_first.., keys at positions k_first..
struct AttentionShape {
  std::int64_t head_dim = 0;
  double scale = 0.0;        // multiplies q . k
  std::int64_t q_first = 0;  // position of the first query row
  std::int64_t k_first = 0;  // position of the first key row
  std::int64_t window = 0;   // keys j with i - j < window are seen; 0: all
};

/// Partial softmax over a stretch of keys, per query row and local q head, in accumulate_dtype.
/// An empty stretch is max = -inf, sum = 0, acc = 0, and adds nothing to a merge.
struct AttentionState {
  Tensor max;  // [M, heads]
  Tensor sum;  // [M, heads]              sum_j exp(s_j - max)
  Tensor acc;  // [M, heads * head_dim]   sum_j exp(s_j - max) v_j
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view kind() const = 0;
  /// False on meta: only shapes flow; to_host throws.
  virtual bool has_values() const = 0;
  virtual Arithmetic arithmetic(Primitive primitive, DType storage) const = 0;

  // ---- memory -------------------------------------------------------------------------------------------------
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Uninitialised, contiguous, 64-byte aligned.
  virtual Tensor allocate(DType dtype, std::int64_t rows, std::int64_t cols) = 0;
  /// A view of host memory where the device can read it in place (cpu), else a copy. Strides in elements.
  /// `host` is kept alive as long as the tensor.
  virtual Tensor adopt(Stream& stream, const HostTensor& host) = 0;
  /// host -> out (same dtype and shape; out may be strided).
  virtual void upload(Stream& stream, const HostTensor& host, const Tensor& out) = 0;
  /// Waits for the stream, then copies out as a dense [rows, cols].
  virtual HostTensor to_host(Stream& stream, const Tensor& tensor) = 0;
  /// Enqueues a 64-bit hash of shape, dtype and bytes into slots[0, index] (u64).
  virtual void hash(Stream& stream, const Tensor& tensor, const Tensor& slots, std::int64_t index) = 0;
  /// Every element becomes a quiet NaN (the largest value for integer dtypes).
  virtual void poison(Stream& stream, const Tensor& out) = 0;

  // ---- primitives (shapes checked here, work done by the virtual do_*) -----------------------------------------
  /// out = x W^T (+ bias); f32 accumulate, one rounding.  x [M, K]  weight [N, K]  bias [1, N] or none  out [M, N]
  void linear(Stream&, const Tensor& x, const Tensor& weight, const Tensor* bias, const Tensor& out);
  /// out = x / sqrt(mean(x^2) + eps) * weight, over columns.                       x, out [M, D]  weight [1, D]
  void rms_norm(Stream&, const Tensor& x, const Tensor& weight, double eps, const Tensor& out);
  /// out = (x - mean) / sqrt(var + eps) * weight + bias; two passes.               x, out [M, D]  weight, bias [1, D]
  void layer_norm(Stream&, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  const Tensor& out);
  /// Rotates each head's pairs.        x, out [M, heads * head_dim]  cos, sin [M, head_dim / 2] in accumulate_dtype
  void rope(Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin, std::int64_t head_dim,
            RopeConvention convention, const Tensor& out);
  /// state = softmax statistics of q against one stretch of keys, causal by position.
  ///                  q [M, heads * head_dim]  k, v [N, kv_heads * head_dim]  heads.size() = heads
  void attention_partial(Stream&, const Tensor& q, const Tensor& k, const Tensor& v, HeadMap heads,
                         const AttentionShape& shape, const AttentionState& out);
  /// into = merge of into and other (log-sum-exp); into is updated in place.
  void attention_merge(Stream&, const AttentionState& other, const AttentionState& into);
  /// out = acc / sum, one rounding.                                                out [M, heads * head_dim]
  void attention_finish(Stream&, const AttentionState& state, std::int64_t head_dim, const Tensor& out);
  /// out = silu(gate) * up, one rounding.                                          all [M, D]
  void gate(Stream&, const Tensor& gate, const Tensor& up, const Tensor& out);
  void unary(Stream&, UnaryKind kind, const Tensor& x, const Tensor& out);
  /// out = a + b, one rounding.                                                    all [M, D]
  void add(Stream&, const Tensor& a, const Tensor& b, const Tensor& out);
  /// out = x + bias of every row, one rounding.                                    x, out [M, D]  bias [1, D]
  void bias(Stream&, const Tensor& x, const Tensor& bias, const Tensor& out);
  /// out[m] = table[local index of ids[m]], or zeros where this rank doesn't own the id. Local rows are the
  /// concatenation of the global ranges `owned` = {begin, end} in order.  ids [1, M] i64  table [V_r, D]  out [M, D]
  void embedding(Stream&, const Tensor& ids, const Tensor& table,
                 std::span<const std::pair<std::int64_t, std::int64_t>> owned, const Tensor& out);
  /// out = in, converted to out.dtype.
  void cast(Stream&, const Tensor& in, const Tensor& out);
  /// out = in, same dtype; both may be strided.
  void copy(Stream&, const Tensor& in, const Tensor& out);
  /// out = terms[0] op terms[1] op ... in the order and precision that `spec` states for P = terms.size() ranks.
  /// The chunk grid of `ring` is that of the whole tensor: `first` is the flat index of element 0 of these views
  /// in a tensor of `total` elements. All terms and out have one dtype (the wire dtype) and one contiguous shape.
  void reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first,
                std::int64_t total, const Tensor& out);

 protected:
  virtual void do_linear(Stream&, const Tensor& x, const Tensor& weight, const Tensor* bias,
                         const Tensor& out) = 0;
  virtual void do_rms_norm(Stream&, const Tensor& x, const Tensor& weight, double eps,
                           const Tensor& out) = 0;
  virtual void do_layer_norm(Stream&, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             double eps, const Tensor& out) = 0;
  virtual void do_rope(Stream&, const Tensor& x, const Tensor& cos, const Tensor& sin,
                       std::int64_t head_dim, RopeConvention convention, const Tensor& out) = 0;
  virtual void do_attention_partial(Stream&, const Tensor& q, const Tensor& k, const Tensor& v,
                                    HeadMap heads, const AttentionShape& shape,
                                    const AttentionState& out) = 0;
  virtual void do_attention_merge(Stream&, const AttentionState& other, const AttentionState& into) = 0;
  virtual void do_attention_finish(Stream&, const AttentionState& state, std::int64_t head_dim,
                                   const Tensor& out) = 0;
  virtual void do_gate(Stream&, const Tensor& gate, const Tensor& up, const Tensor& out) = 0;
  virtual void do_unary(Stream&, UnaryKind kind, const Tensor& x, const Tensor& out) = 0;
  virtual void do_add(Stream&, const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  virtual void do_bias(Stream&, const Tensor& x, const Tensor& bias, const Tensor& out) = 0;
  virtual void do_embedding(Stream&, const Tensor& ids, const Tensor& table,
                            std::span<const std::pair<std::int64_t, std::int64_t>> owned,
                            const Tensor& out) = 0;
  virtual void do_cast(Stream&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_copy(Stream&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec,
                           std::int64_t first, std::int64_t total, const Tensor& out) = 0;
};

/// Kinds of device by name. A value that is passed in: a new kind is one `add`.
class DeviceRegistry {
 public:
  using Factory = std::function<std::unique_ptr<Device>()>;
  void add(std::string kind, Factory factory) { factories_[std::move(kind)] = std::move(factory); }
  /// Throws InputError naming the kinds there are.
  std::unique_ptr<Device> make(const std::string& kind) const;
  std::vector<std::string> kinds() const;

 private:
  std::map<std::string, Factory> factories_;
};

/// "cpu" and "meta".
DeviceRegistry builtin_devices();

}  // namespace shardcheck
