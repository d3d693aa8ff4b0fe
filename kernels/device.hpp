// SPDX-License-Identifier: Apache-2.0
// Device: memory, streams and the primitives that every op is made of. One interface, several kinds
// (cpu, meta, emu, cuda); nothing above this header knows which one runs.
//
// Rules that hold for every primitive:
//  - it is enqueued on a stream and may return before it has run; numbers are seen only through start_read and to_host;
//  - what other streams have written, or still read, must be ordered by an Event;
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
#include <mutex>
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

/// A point in a stream's work, made by Device::record. Other streams can wait for it without the host waiting.
class Event {
 public:
  virtual ~Event() = default;
};

/// A stretch of this thread's work that has a name in a profiler, from Device::range until the object goes.
class NamedRange {
 public:
  explicit NamedRange(void (*end)()) : end_(end) {}
  ~NamedRange() {
    if (end_ != nullptr) end_();
  }
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  void (*end_)();
};

/// A tensor on its way to the host, made by Device::start_read.
class HostRead {
 public:
  virtual ~HostRead() = default;
  /// Waits for the bytes; dense [rows, cols]. To be called once.
  virtual HostTensor take() = 0;
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
  reduce_n,
  add_rms_norm,
  argmax,
  cross_entropy,
  square_sum,
  rms_apply
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

/// Global index ranges {begin, end} of what a rank's rows or columns are, in local order.
using OwnedRanges = std::span<const std::pair<std::int64_t, std::int64_t>>;

/// Softmax cross-entropy of a stretch of the vocabulary, per token, in accumulate_dtype.
/// An empty stretch is max = -inf, sum = 0, and adds nothing to a merge.
struct CrossEntropyState {
  Tensor max;     // [M, 1]
  Tensor sum;     // [M, 1]   sum_j exp(x_j - max)
  Tensor target;  // [M, 1]   the target's logit; 0 where the stretch doesn't hold it
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view kind() const = 0;
  /// False on meta: only shapes flow; to_host throws.
  virtual bool has_values() const = 0;
  /// True where calls return before their work is done. Ranks then meet by events, not by waiting on the host.
  virtual bool returns_early() const { return false; }
  /// True where adopt() gives a view of host memory: ranks then share one copy of the weights.
  virtual bool shares_host_memory() const { return false; }
  /// The lock that a rank's host code holds while it runs and gives up while it waits for other ranks; null: ranks may
  /// run at once. A device whose memory must not be seen by host code (emu) makes ranks take turns by it.
  virtual std::mutex* turn() { return nullptr; }
  virtual Arithmetic arithmetic(Primitive primitive, DType storage) const = 0;
  /// True for the dtypes that primitives compute in; bytes of every dtype can be kept, copied and hashed.
  virtual bool computes_in(DType dtype) const { return is_float(dtype); }
  /// Names what this thread enqueues while the object lives, for profilers (an op, a collective); they nest.
  [[nodiscard]] virtual NamedRange range(std::string_view /*name*/) { return NamedRange(nullptr); }

  // ---- memory -------------------------------------------------------------------------------------------------
  virtual std::unique_ptr<Stream> make_stream() = 0;
  /// Uninitialised, contiguous, 64-byte aligned. Used from `stream` on; given back in the order of that stream when the
  /// last tensor goes, so that other streams' uses must be ordered before by an event.
  virtual Tensor allocate(Stream& stream, DType dtype, std::int64_t rows, std::int64_t cols) = 0;
  /// All work enqueued on `stream` so far.
  virtual std::unique_ptr<Event> record(Stream& stream) = 0;
  /// Work enqueued on `stream` from now on starts after `event`. The event may go before that.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// A view of host memory where the device can read it in place (cpu), else a copy. Strides in elements.
  /// `host` is kept alive as long as the tensor.
  virtual Tensor adopt(Stream& stream, const HostTensor& host) = 0;
  /// host -> out (same dtype and shape; out may be strided).
  virtual void upload(Stream& stream, const HostTensor& host, const Tensor& out) = 0;
  /// Enqueues a copy to the host of what `tensor` holds at this point of the stream.
  virtual std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) = 0;
  /// start_read and take.
  HostTensor to_host(Stream& stream, const Tensor& tensor) { return start_read(stream, tensor)->take(); }
  /// Enqueues a 64-bit hash of shape, dtype and bytes into slots[0, index] (u64).
  virtual void hash(Stream& stream, const Tensor& tensor, const Tensor& slots, std::int64_t index) = 0;
  /// Every element becomes a quiet NaN (the largest value for integer dtypes).
  virtual void poison(Stream& stream, const Tensor& out) = 0;
  /// cos and sin of angles in radians, rounded once to `dtype`: the rows of rope's tables. A device whose numbers are no
  /// reals says what stands for them there.
  virtual HostTensor cosines(DType dtype, std::vector<std::int64_t> shape, std::span<const double> angles) const;
  virtual HostTensor sines(DType dtype, std::vector<std::int64_t> shape, std::span<const double> angles) const;

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
  void embedding(Stream&, const Tensor& ids, const Tensor& table, OwnedRanges owned, const Tensor& out);
  /// out = in, converted to out.dtype.
  void cast(Stream&, const Tensor& in, const Tensor& out);
  /// out = in, same dtype; both may be strided.
  void copy(Stream&, const Tensor& in, const Tensor& out);
  /// out = terms[0] op terms[1] op ... in the order and precision that `spec` states for P = terms.size() ranks.
  /// The chunk grid of `ring` is that of the whole tensor: `first` is the flat index of element 0 of these views
  /// in a tensor of `total` elements. All terms and out have one dtype (the wire dtype) and one contiguous shape.
  void reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec, std::int64_t first,
                std::int64_t total, const Tensor& out);
  /// sum = a + b, rounded once; out = rms_norm(sum), of the rounded sum: the bits of add and rms_norm in one pass.
  ///                                                                     a, b, sum, out [M, D]  weight [1, D]
  void add_rms_norm(Stream&, const Tensor& a, const Tensor& b, const Tensor& weight, double eps,
                    const Tensor& sum, const Tensor& out);
  /// Per row the largest value and its global column; the lowest of equal ones, and NaN is the largest. A row without
  /// columns gives -inf and -1.               x [M, V_r]  value [M, 1] in accumulate_dtype  index [M, 1] i64
  void argmax(Stream&, const Tensor& x, OwnedRanges owned, const Tensor& value, const Tensor& index);
  /// out = sum of x^2 over the columns, 0 where there are none.            x [M, n_r]  out [M, 1] in accumulate_dtype
  void square_sum(Stream&, const Tensor& x, const Tensor& out);
  /// out = x / sqrt(squares / features + eps) * weight: rms_norm of some columns of a row of `features`, whose sum of
  /// squares is given. One rounding.     x, out [M, n_r]  weight [1, n_r]  squares [M, 1] in accumulate_dtype
  void rms_apply(Stream&, const Tensor& x, const Tensor& weight, const Tensor& squares, std::int64_t features,
                 double eps, const Tensor& out);
  /// state = statistics of a vocabulary shard.                                  logits [M, V_r]  targets [1, M] i64
  void cross_entropy_partial(Stream&, const Tensor& logits, const Tensor& targets, OwnedRanges owned,
                             const CrossEntropyState& out);
  /// into = merge of two stretches; into is updated in place.
  void cross_entropy_merge(Stream&, const CrossEntropyState& other, const CrossEntropyState& into);
  /// loss = log(sum) + max - target.                                            loss [M, 1] in accumulate_dtype
  void cross_entropy_finish(Stream&, const CrossEntropyState& state, const Tensor& loss);

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
  virtual void do_embedding(Stream&, const Tensor& ids, const Tensor& table, OwnedRanges owned,
                            const Tensor& out) = 0;
  virtual void do_cast(Stream&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_copy(Stream&, const Tensor& in, const Tensor& out) = 0;
  virtual void do_reduce_n(Stream&, std::span<const Tensor> terms, const ReduceSpec& spec,
                           std::int64_t first, std::int64_t total, const Tensor& out) = 0;
  virtual void do_add_rms_norm(Stream&, const Tensor& a, const Tensor& b, const Tensor& weight, double eps,
                               const Tensor& sum, const Tensor& out) = 0;
  virtual void do_argmax(Stream&, const Tensor& x, OwnedRanges owned, const Tensor& value,
                         const Tensor& index) = 0;
  virtual void do_cross_entropy_partial(Stream&, const Tensor& logits, const Tensor& targets,
                                        OwnedRanges owned, const CrossEntropyState& out) = 0;
  virtual void do_cross_entropy_merge(Stream&, const CrossEntropyState& other,
                                      const CrossEntropyState& into) = 0;
  virtual void do_cross_entropy_finish(Stream&, const CrossEntropyState& state, const Tensor& loss) = 0;
  virtual void do_square_sum(Stream&, const Tensor& x, const Tensor& out) = 0;
  virtual void do_rms_apply(Stream&, const Tensor& x, const Tensor& weight, const Tensor& squares,
                            std::int64_t features, double eps, const Tensor& out) = 0;
};

/// One kind of device.
struct DeviceKind {
  /// For this many ranks: one device that all share, or one for each. Throws InputError if there is none.
  std::function<std::vector<std::unique_ptr<Device>>(int ranks)> make;
  /// What there is of it here: a sentence for `shardcheck info`. Never throws.
  std::function<std::string()> describe;
};

/// Kinds of device by name. A value that is passed in: a new kind is one `add`.
class DeviceRegistry {
 public:
  void add(std::string kind, DeviceKind entry) { entries_[std::move(kind)] = std::move(entry); }
  /// Throws InputError naming the kinds there are.
  std::vector<std::unique_ptr<Device>> make_for(const std::string& kind, int ranks) const;
  std::unique_ptr<Device> make(const std::string& kind) const { return std::move(make_for(kind, 1).front()); }
  std::string describe(const std::string& kind) const;
  std::vector<std::string> kinds() const;

 private:
  const DeviceKind& entry(const std::string& kind) const;

  std::map<std::string, DeviceKind> entries_;
};

/// "cpu", "meta", "emu", and "cuda", which is a module that is opened when it is asked for.
DeviceRegistry builtin_devices();

}  // namespace shardcheck
