// SPDX-License-Identifier: Apache-2.0
#include "kernels/meta/meta_device.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "model/error.hpp"

namespace shardcheck {
namespace {

class MetaStream final : public Stream {
 public:
  void synchronize() override {}
};

class MetaEvent final : public Event {};

class MetaDevice final : public Device {
 public:
  std::string_view kind() const override { return "meta"; }
  bool has_values() const override { return false; }
  Arithmetic arithmetic(Primitive, DType storage) const override {
    return {.accumulate = accumulate_dtype(storage),
            .fraction_bits = info(accumulate_dtype(storage)).precision};
  }

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<MetaStream>(); }
  std::unique_ptr<Event> record(Stream&) override { return std::make_unique<MetaEvent>(); }
  void wait(Stream&, const Event&) override {}
  Tensor allocate(Stream&, DType dtype, std::int64_t rows, std::int64_t cols) override {
    return {.device = this, .storage = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .row_stride = cols};
  }
  Tensor adopt(Stream& stream, const HostTensor& host) override {
    if (host.shape().size() != 1 && host.shape().size() != 2) {
      throw ShapeError(fmt::format("adopt: a device tensor is a vector or a matrix; got shape {}",
                                   to_string(host.shape())));
    }
    return allocate(stream, host.dtype(), host.rows(), host.cols());
  }
  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override {
    copy(stream, adopt(stream, host), out);
  }
  std::unique_ptr<HostRead> start_read(Stream&, const Tensor& tensor) override {
    throw std::logic_error(fmt::format("meta: a tensor [{}, {}] has a shape but no values to read; ask has_values()",
                                       tensor.rows, tensor.cols));
  }
  void hash(Stream&, const Tensor&, const Tensor&, std::int64_t) override {}
  void poison(Stream&, const Tensor&) override {}

 protected:
  void do_linear(Stream&, const Tensor&, const Tensor&, const Tensor*, const Tensor&) override {}
  void do_rms_norm(Stream&, const Tensor&, const Tensor&, double, const Tensor&) override {}
  void do_layer_norm(Stream&, const Tensor&, const Tensor&, const Tensor&, double, const Tensor&) override {}
  void do_rope(Stream&, const Tensor&, const Tensor&, const Tensor&, std::int64_t, RopeConvention,
               const Tensor&) override {}
  void do_attention_partial(Stream&, const Tensor&, const Tensor&, const Tensor&, HeadMap, const AttentionShape&,
                            const AttentionState&) override {}
  void do_attention_merge(Stream&, const AttentionState&, const AttentionState&) override {}
  void do_attention_finish(Stream&, const AttentionState&, std::int64_t, const Tensor&) override {}
  void do_gate(Stream&, const Tensor&, const Tensor&, const Tensor&) override {}
  void do_unary(Stream&, UnaryKind, const Tensor&, const Tensor&) override {}
  void do_add(Stream&, const Tensor&, const Tensor&, const Tensor&) override {}
  void do_bias(Stream&, const Tensor&, const Tensor&, const Tensor&) override {}
  void do_embedding(Stream&, const Tensor&, const Tensor&, OwnedRanges, const Tensor&) override {}
  void do_cast(Stream&, const Tensor&, const Tensor&) override {}
  void do_copy(Stream&, const Tensor&, const Tensor&) override {}
  void do_reduce_n(Stream&, std::span<const Tensor>, const ReduceSpec&, std::int64_t, std::int64_t,
                   const Tensor&) override {}
  void do_add_rms_norm(Stream&, const Tensor&, const Tensor&, const Tensor&, double, const Tensor&,
                       const Tensor&) override {}
  void do_argmax(Stream&, const Tensor&, OwnedRanges, const Tensor&, const Tensor&) override {}
  void do_cross_entropy_partial(Stream&, const Tensor&, const Tensor&, OwnedRanges,
                                const CrossEntropyState&) override {}
  void do_cross_entropy_merge(Stream&, const CrossEntropyState&, const CrossEntropyState&) override {}
  void do_cross_entropy_finish(Stream&, const CrossEntropyState&, const Tensor&) override {}
  void do_square_sum(Stream&, const Tensor&, const Tensor&) override {}
  void do_rms_apply(Stream&, const Tensor&, const Tensor&, const Tensor&, std::int64_t, double,
                    const Tensor&) override {}
};

}  // namespace

std::unique_ptr<Device> make_meta_device() { return std::make_unique<MetaDevice>(); }

}  // namespace shardcheck
