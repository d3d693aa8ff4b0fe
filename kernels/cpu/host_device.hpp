// SPDX-License-Identifier: Apache-2.0
// The half of a device that computes on the host: memory, streams and events, where all work is done before a call
// returns. Only devices include this; they add the primitives.
#pragma once

#include <memory>
#include <string_view>

#include "kernels/cpu/block_pool.hpp"
#include "kernels/device.hpp"

namespace shardcheck::cpu {

/// Nothing to wait for.
class HostStream : public Stream {
 public:
  void synchronize() override {}
};

class HostDevice : public Device {
 public:
  bool has_values() const override { return true; }
  bool shares_host_memory() const override { return true; }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  std::unique_ptr<Event> record(Stream&) override;
  void wait(Stream&, const Event&) override {}
  Tensor allocate(Stream&, DType dtype, std::int64_t rows, std::int64_t cols) override;
  Tensor adopt(Stream&, const HostTensor& host) override;
  void upload(Stream& stream, const HostTensor& host, const Tensor& out) override;
  std::unique_ptr<HostRead> start_read(Stream& stream, const Tensor& tensor) override;
  void hash(Stream&, const Tensor& tensor, const Tensor& slots, std::int64_t index) override;
  void poison(Stream&, const Tensor& out) override;

 private:
  void check_here(std::string_view call, const Tensor& tensor) const;
  void check_writable(std::string_view call, const Tensor& tensor) const;

  std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
};

}  // namespace shardcheck::cpu
