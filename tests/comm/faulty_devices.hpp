// SPDX-License-Identifier: Apache-2.0
// Devices that fail the communicators in one place.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>

#include "model/error.hpp"
#include "tests/kernels/wrapped_device.hpp"

namespace shardcheck::testing {

/// Drops the n-th call of wait, counted over all streams from 0: a missing event between ranks.
class ForgetfulDevice final : public WrappedDevice {
 public:
  ForgetfulDevice(std::unique_ptr<Device> inner, int dropped)
      : WrappedDevice(std::move(inner)), dropped_(dropped) {}

  void wait(Stream& stream, const Event& event) override {
    if (waits_++ != dropped_) WrappedDevice::wait(stream, event);
  }
  int waits() const { return waits_; }

 private:
  const int dropped_;
  std::atomic<int> waits_ = 0;
};

/// Throws at the n-th call of record, wait, copy or reduce_n, counted from 0.
class FailingDevice final : public WrappedDevice {
 public:
  FailingDevice(std::unique_ptr<Device> inner, int fails_at)
      : WrappedDevice(std::move(inner)), fails_at_(fails_at) {}

  std::unique_ptr<Event> record(Stream& stream) override {
    count();
    return WrappedDevice::record(stream);
  }
  void wait(Stream& stream, const Event& event) override {
    count();
    WrappedDevice::wait(stream, event);
  }
  int calls() const { return calls_; }

 protected:
  void do_copy(Stream& stream, const Tensor& in, const Tensor& out) override {
    count();
    WrappedDevice::do_copy(stream, in, out);
  }
  void do_reduce_n(Stream& stream, std::span<const Tensor> terms, const ReduceSpec& spec,
                   std::int64_t first, std::int64_t total, const Tensor& out) override {
    count();
    WrappedDevice::do_reduce_n(stream, terms, spec, first, total, out);
  }

 private:
  void count() {
    if (calls_++ == fails_at_) throw DeviceError("the device fell over");
  }

  const int fails_at_;
  std::atomic<int> calls_ = 0;
};

}  // namespace shardcheck::testing
