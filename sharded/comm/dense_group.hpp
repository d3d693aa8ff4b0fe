// SPDX-License-Identifier: Apache-2.0
// A library of collectives (NCCL) as communicators see it: equal counts and contiguous memory. What is uneven or
// strided is packed around it, in dense_movement.cpp.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kernels/device.hpp"
#include "sharded/comm/agreement.hpp"

namespace shardcheck {

/// One member's end of a group. Calls enqueue on the stream and return; the members' calls have been checked against
/// each other. All tensors are contiguous and of one dtype. Throws CommError or DeviceError if the library refuses, and
/// in every call once the group has been aborted.
class DenseGroup {
 public:
  struct Message {
    Tensor tensor;
    int peer = 0;  // member
  };

  virtual ~DenseGroup() = default;
  /// True if the library can sum in this order; where it can't, terms are gathered and summed by Device::reduce_n.
  virtual bool reduces(const ReduceSpec& spec, const Tensor& in) const = 0;
  /// Precondition: reduces(spec, in).                                                          in, out [n] elements
  virtual void all_reduce(Stream&, const Tensor& in, const ReduceSpec& spec, const Tensor& out) = 0;
  /// True if it can sum and scatter in this order.
  virtual bool reduce_scatters(const ReduceSpec& spec, const Tensor& in) const = 0;
  /// out = this member's n elements of the sum.                                                in [size n]  out [n]
  virtual void reduce_scatter(Stream&, const Tensor& in, const Tensor& out) = 0;
  /// out = every member's in, in their order.                                                  in [n]  out [size n]
  virtual void all_gather(Stream&, const Tensor& in, const Tensor& out) = 0;
  /// out = the root's in. The others' in may be no tensor.
  virtual void broadcast(Stream&, const Tensor& in, int root, const Tensor& out) = 0;
  /// All messages at once, in any order.
  virtual void exchange(Stream&, std::span<const Message> sends, std::span<const Message> receives) = 0;

  // ---- watched over by another thread than the member's ----
  /// What has gone wrong with work that was enqueued; empty if nothing.
  virtual std::string failure() = 0;
  /// Ends all work that was enqueued, as it is. To be called once the run has been stopped.
  virtual void abort() = 0;
  /// Waits until the device has done this member's work.
  virtual void drain() = 0;
};

/// How a member joins a group.
struct Joining {
  std::string id;  // the group's, of CollectiveLibrary::new_id
  int size = 0, member = 0;
  std::string name;               // for messages: "tp, rank 3"
  std::function<bool()> stopped;  // true once the run has ended while members are still missing
};

/// What a module of collectives offers.
class CollectiveLibrary {
 public:
  virtual ~CollectiveLibrary() = default;
  /// The kind of device whose memory it moves.
  virtual std::string_view device_kind() const = 0;
  /// Why this many ranks of one process can't use it here, and what to do; empty if they can.
  virtual std::string refusal(int ranks) const = 0;
  /// Names a new group. One member asks, all use it.
  virtual std::string new_id() = 0;
  /// Returns when all members have joined, each on its stream's device.
  virtual std::unique_ptr<DenseGroup> join(Stream&, const Joining& joining) = 0;
  /// What reports must say of it: who chooses the order of a sum.
  virtual std::string note() const = 0;
};

/// Enqueues what fills this member's out: packs its operands, lets the group move them, and unpacks. Bits are those of
/// thread ranks, except where the group sums in an order of its own.
void move_densely(DenseGroup& group, Device& device, Stream& stream, int size, int member,
                  const Post& post);

}  // namespace shardcheck
