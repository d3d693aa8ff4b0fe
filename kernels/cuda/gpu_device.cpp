// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu_device.hpp"

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/memory.hpp"
#include "kernels/cuda/primitives.hpp"
#include "kernels/cuda/ranges.hpp"
#include "model/error.hpp"

namespace shardcheck::gpu {
namespace {

#if defined(SHARDCHECK_EMU)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

class GpuEvent final : public Event {
 public:
  EventHandle handle;
};

/// Bytes on their way to a pinned block.
class GpuRead final : public HostRead {
 public:
  GpuRead(std::shared_ptr<PinnedPool> pool, cudaStream_t stream, const Tensor& dense)
      : pool_(std::move(pool)), host_(dense.dtype, {dense.rows, dense.cols}) {
    if (host_.bytes() == 0) return;
    block_ = pool_->take(host_.bytes());
    // From here on the block is given back by the destructor only, after the event.
    check(cudaMemcpyAsync(block_.data, address(dense), host_.bytes(), cudaMemcpyDeviceToHost, stream),
          "to_host");
    check(cudaEventRecord(arrived_.get(), stream), "to_host");
  }
  ~GpuRead() override {
    if (block_.data == nullptr) return;
    try {
      static_cast<void>(cudaEventSynchronize(arrived_.get()));  // nobody took it: the copy may still be under way
    } catch (const std::exception&) {  // emu's report of a fault, which the stream's next synchronisation repeats
    }
    pool_->give(block_);
  }
  GpuRead(const GpuRead&) = delete;
  GpuRead& operator=(const GpuRead&) = delete;

  HostTensor take() override {
    if (block_.data != nullptr) {
      check(cudaEventSynchronize(arrived_.get()), "to_host");
      std::memcpy(host_.mutable_data(), block_.data, host_.bytes());
      pool_->give(std::exchange(block_, {}));
    }
    return std::move(host_);
  }

 private:
  std::shared_ptr<PinnedPool> pool_;
  HostTensor host_;
  EventHandle arrived_;
  PinnedPool::Block block_;
};

class GpuDevice final : public Device {
 public:
  explicit GpuDevice(int index) : index_(index) {
    enter();
    check(cudaDeviceGetAttribute(&major_, cudaDevAttrComputeCapabilityMajor, index),
          "cudaDeviceGetAttribute");
    check(cudaDeviceGetAttribute(&reads_pageable_, cudaDevAttrPageableMemoryAccess, index),
          "cudaDeviceGetAttribute");
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, index), "cudaDeviceGetDefaultMemPool");
    // Freed memory stays in the pool: giving it back to the driver at every synchronisation costs milliseconds.
    std::uint64_t keep_all = ~std::uint64_t{0};
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all),
          "cudaMemPoolSetAttribute");
    linear_ = std::make_unique<Linear>();
  }

  std::string_view kind() const override { return kEmulated ? "emu" : "cuda"; }
  bool has_values() const override { return true; }
  bool returns_early() const override { return true; }
  std::mutex* turn() override { return kEmulated ? &turn_ : nullptr; }
  NamedRange range(std::string_view name) override { return named_range(name); }

  Arithmetic arithmetic(Primitive primitive, DType storage) const override {
    const DType accumulate = accumulate_dtype(storage);
    Arithmetic stated{.accumulate = accumulate, .fraction_bits = info(accumulate).precision};
    const bool tensor_cores = primitive == Primitive::linear &&
                              (storage == DType::bf16 || storage == DType::f16);
    if (!kEmulated && tensor_cores) {
      // Products are summed exactly down to a bit below the largest one's, then truncated: on Ampere and Ada 8 of them
      // with 24 fraction bits, from Hopper on 16 with 25 (MMA-Sim, arXiv 2511.10909).
      const bool hopper = major_ >= 9;
      stated.truncating = true;
      stated.fraction_bits = hopper ? 25 : 24;
      stated.block_k = hopper ? 16 : 8;
    }
    return stated;
  }

  std::unique_ptr<Stream> make_stream() override {
    enter();
    return std::make_unique<GpuStream>();
  }

  std::unique_ptr<Event> record(Stream& stream) override {
    const cudaStream_t queue = enter(stream);
    auto event = std::make_unique<GpuEvent>();
    check(cudaEventRecord(event->handle.get(), queue), "record");
    return event;
  }

  void wait(Stream& stream, const Event& event) override {
    const cudaStream_t queue = enter(stream);
    check(cudaStreamWaitEvent(queue, static_cast<const GpuEvent&>(event).handle.get(), 0), "wait");
  }

  Tensor allocate(Stream& stream, DType dtype, std::int64_t rows, std::int64_t cols) override {
    if (rows < 0 || cols < 0) {
      throw ShapeError(fmt::format("allocate: extents must not be negative; got [{}, {}]", rows, cols));
    }
    return make_tensor(stream, dtype, rows, cols, true);
  }

  Tensor adopt(Stream& stream, const HostTensor& host) override {
    check_matrix("adopt", host);
    const Tensor copied = make_tensor(stream, host.dtype(), host.rows(), host.cols(), false);
    copy_in(stream, host, copied);
    return copied;
  }

  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    check_writable("upload", out);
    check_matrix("upload", host);
    if (host.dtype() != out.dtype || host.rows() != out.rows || host.cols() != out.cols) {
      throw ShapeError(fmt::format(
          "upload: both must have the same dtype and shape; got host {} [{}, {}], out {} [{}, {}]",
          name(host.dtype()), host.rows(), host.cols(), name(out.dtype), out.rows, out.cols));
    }
    if (out.contiguous()) return copy_in(stream, host, out);
    const Tensor dense = allocate(stream, out.dtype, out.rows, out.cols);
    copy_in(stream, host, dense);
    if (out.elements() > 0) gpu::copy(enter(stream), dense, out);
  }

  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override {
    check_here("to_host", tensor);
    const cudaStream_t queue = enter(stream);
    Tensor dense = tensor;
    if (tensor.elements() > 0 && !tensor.contiguous()) {
      dense = allocate(stream, tensor.dtype, tensor.rows, tensor.cols);
      gpu::copy(queue, tensor, dense);
    }
    return std::make_unique<GpuRead>(pinned_, queue, dense);
  }

  void hash(Stream& stream, const Tensor& tensor, const Tensor& slots, std::int64_t index) override {
    check_here("hash", tensor);
    check_here("hash", slots);
    if (slots.dtype != DType::u64 || slots.rows != 1 || index < 0 || index >= slots.cols) {
      throw ShapeError(
          fmt::format("hash: slots must be u64 [1, n] with n > index {}; got {} [{}, {}]", index,
                      name(slots.dtype), slots.rows, slots.cols));
    }
    gpu::hash(enter(stream), tensor, slots, index);
  }

  void poison(Stream& stream, const Tensor& out) override {
    check_writable("poison", out);
    if (out.elements() > 0) gpu::poison(enter(stream), out);
  }

 protected:
  void do_linear(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor* bias,
                 const Tensor& out) override {
    const NamedRange named = begin("linear");
    rounded_once(stream, x, out,
                 [&](const Tensor& y) { linear_->run(*this, stream, x, weight, bias, y); });
  }
  void do_rms_norm(Stream& stream, const Tensor& x, const Tensor& weight, double eps,
                   const Tensor& out) override {
    const NamedRange named = begin("rms_norm");
    rounded_once(stream, x, out,
                 [&](const Tensor& y) { gpu::rms_norm(native(stream), x, weight, eps, y); });
  }
  void do_layer_norm(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     double eps, const Tensor& out) override {
    const NamedRange named = begin("layer_norm");
    rounded_once(stream, x, out,
                 [&](const Tensor& y) { gpu::layer_norm(native(stream), x, weight, bias, eps, y); });
  }
  void do_rope(Stream& stream, const Tensor& x, const Tensor& cos, const Tensor& sin,
               std::int64_t head_dim, RopeConvention convention, const Tensor& out) override {
    const NamedRange named = begin("rope");
    rounded_once(stream, x, out, [&](const Tensor& y) {
      gpu::rope(native(stream), x, cos, sin, head_dim, convention, y);
    });
  }
  void do_attention_partial(Stream& stream, const Tensor& q, const Tensor& k, const Tensor& v,
                            HeadMap heads, const AttentionShape& shape,
                            const AttentionState& out) override {
    const NamedRange named = begin("attention_partial");
    AttentionWorkspace workspace;
    const std::int64_t splits = attention_splits(q.rows, k.rows, shape.head_dim);
    if (splits > 1) {
      const std::int64_t rows = splits * q.rows;
      workspace.max = allocate(stream, out.max.dtype, rows, out.max.cols);
      workspace.sum = allocate(stream, out.max.dtype, rows, out.max.cols);
      workspace.acc = allocate(stream, out.max.dtype, rows, out.acc.cols);
    }
    gpu::attention_partial(native(stream), q, k, v, heads, shape, workspace, out);
  }
  void do_attention_merge(Stream& stream, const AttentionState& other,
                          const AttentionState& into) override {
    const NamedRange named = begin("attention_merge");
    gpu::attention_merge(native(stream), other, into);
  }
  void do_attention_finish(Stream& stream, const AttentionState& state, std::int64_t head_dim,
                           const Tensor& out) override {
    const NamedRange named = begin("attention_finish");
    gpu::attention_finish(native(stream), state, head_dim, out);
  }
  void do_gate(Stream& stream, const Tensor& gate, const Tensor& up, const Tensor& out) override {
    const NamedRange named = begin("gate");
    rounded_once(stream, gate, out, [&](const Tensor& y) { gpu::gate(native(stream), gate, up, y); });
  }
  void do_unary(Stream& stream, UnaryKind kind, const Tensor& x, const Tensor& out) override {
    const NamedRange named = begin("unary");
    rounded_once(stream, x, out, [&](const Tensor& y) { gpu::unary(native(stream), kind, x, y); });
  }
  void do_add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out) override {
    const NamedRange named = begin("add");
    rounded_once(stream, a, out, [&](const Tensor& y) { gpu::add(native(stream), a, b, y); });
  }
  void do_bias(Stream& stream, const Tensor& x, const Tensor& bias, const Tensor& out) override {
    const NamedRange named = begin("bias");
    rounded_once(stream, x, out, [&](const Tensor& y) { gpu::bias(native(stream), x, bias, y); });
  }
  void do_embedding(Stream& stream, const Tensor& ids, const Tensor& table, OwnedRanges owned,
                    const Tensor& out) override {
    const NamedRange named = begin("embedding");
    gpu::embedding(native(stream), ids, table, owned, out);
  }
  void do_cast(Stream& stream, const Tensor& in, const Tensor& out) override {
    const NamedRange named = begin("cast");
    gpu::cast(native(stream), in, out);
  }
  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    const NamedRange named = begin("copy");
    gpu::copy(native(stream), in, out);
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    const NamedRange named = begin("reduce_n");
    gpu::reduce_n(native(stream), terms, spec, first, total, out);
  }
  void do_add_rms_norm(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& weight,
                       double eps, const Tensor& sum, const Tensor& out) override {
    const NamedRange named = begin("add_rms_norm");
    rounded_once(stream, a, out, [&](const Tensor& y) {
      gpu::add_rms_norm(native(stream), a, b, weight, eps, sum, y);
    });
  }
  void do_argmax(Stream& stream, const Tensor& x, OwnedRanges owned, const Tensor& value,
                 const Tensor& index) override {
    const NamedRange named = begin("argmax");
    gpu::argmax(native(stream), x, owned, value, index);
  }
  void do_cross_entropy_partial(Stream& stream, const Tensor& logits, const Tensor& targets,
                                OwnedRanges owned, const CrossEntropyState& out) override {
    const NamedRange named = begin("cross_entropy_partial");
    gpu::cross_entropy_partial(native(stream), logits, targets, owned, out);
  }
  void do_cross_entropy_merge(Stream& stream, const CrossEntropyState& other,
                              const CrossEntropyState& into) override {
    const NamedRange named = begin("cross_entropy_merge");
    gpu::cross_entropy_merge(native(stream), other, into);
  }
  void do_cross_entropy_finish(Stream& stream, const CrossEntropyState& state,
                               const Tensor& loss) override {
    const NamedRange named = begin("cross_entropy_finish");
    gpu::cross_entropy_finish(native(stream), state, loss);
  }
  void do_square_sum(Stream& stream, const Tensor& x, const Tensor& out) override {
    const NamedRange named = begin("square_sum");
    gpu::square_sum(native(stream), x, out);
  }
  void do_rms_apply(Stream& stream, const Tensor& x, const Tensor& weight, const Tensor& squares,
                    std::int64_t features, double eps, const Tensor& out) override {
    const NamedRange named = begin("rms_apply");
    rounded_once(stream, x, out, [&](const Tensor& y) {
      gpu::rms_apply(native(stream), x, weight, squares, features, eps, y);
    });
  }

 private:
  /// Which GPU is current belongs to the host thread, and any thread may call.
  void enter() const { check(cudaSetDevice(index_), "cudaSetDevice"); }
  cudaStream_t enter(Stream& stream) const {
    enter();
    return native(stream);
  }
  /// Of every primitive.
  NamedRange begin(std::string_view primitive) const {
    enter();
    return named_range(primitive);
  }

  Tensor make_tensor(Stream& stream, DType dtype, std::int64_t rows, std::int64_t cols, bool writable) {
    enter();
    const std::size_t bytes = static_cast<std::size_t>(rows * cols) * element_size(dtype);
    return {.device = this,
            .storage = std::make_shared<GpuStorage>(static_cast<GpuStream&>(stream).handle(), bytes,
                                                    writable),
            .dtype = dtype,
            .rows = rows,
            .cols = cols,
            .row_stride = cols};
  }

  /// The bytes have left `host`, which is pageable, when this returns: CUDA stages them before its call returns, except
  /// where the GPU may fetch them from pageable memory itself, in the stream's own time.
  void copy_in(Stream& stream, const HostTensor& host, const Tensor& dense) const {
    if (host.bytes() == 0) return;
    const cudaStream_t queue = enter(stream);
    check(cudaMemcpyAsync(address(dense), host.data(), host.bytes(), cudaMemcpyHostToDevice, queue),
          "upload");
    if (reads_pageable_ != 0) check(cudaStreamSynchronize(queue), "upload");
  }

  /// Kernels write their first operand's dtype and its accumulate dtype; what goes into another is made in the latter
  /// and rounded from there.
  template <typename Compute>
  void rounded_once(Stream& stream, const Tensor& first, const Tensor& out, const Compute& compute) {
    const DType accumulate = accumulate_dtype(first.dtype);
    if (out.dtype == first.dtype || out.dtype == accumulate) return compute(out);
    const Tensor exact = allocate(stream, accumulate, out.rows, out.cols);
    compute(exact);
    gpu::cast(native(stream), exact, out);
  }

  void check_here(std::string_view call, const Tensor& tensor) const {
    if (tensor.device != this)
      throw ShapeError(fmt::format("{}: the tensor lives on another device", call));
  }
  void check_writable(std::string_view call, const Tensor& tensor) const {
    check_here(call, tensor);
    if (!static_cast<const GpuStorage&>(*tensor.storage).writable()) {
      throw ShapeError(fmt::format("{}: an adopted tensor is read only; copy it first", call));
    }
  }
  static void check_matrix(std::string_view call, const HostTensor& host) {
    if (host.shape().size() == 1 || host.shape().size() == 2) return;
    throw ShapeError(fmt::format("{}: a device tensor is a vector or a matrix; got shape {}", call,
                                 to_string(host.shape())));
  }

  const int index_;
  int major_ = 0;           // of the compute capability
  int reads_pageable_ = 0;  // 1: the GPU can read host memory that isn't pinned
  std::mutex turn_;
  std::shared_ptr<PinnedPool> pinned_ = std::make_shared<PinnedPool>();
  std::unique_ptr<Linear> linear_;
};

}  // namespace

std::unique_ptr<Device> make_gpu_device(int index) { return std::make_unique<GpuDevice>(index); }

}  // namespace shardcheck::gpu
