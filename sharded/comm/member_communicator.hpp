// SPDX-License-Identifier: Apache-2.0
// What the communicators of all kinds share: describing and checking a call, poisoning its out, and the record.
#pragma once

#include <cstdint>

#include "sharded/comm/agreement.hpp"

namespace shardcheck {

/// Turns every collective into one `exchange` of a checked Post. A kind of communicator says how ranks meet.
class MemberCommunicator : public Communicator {
 public:
  MemberCommunicator(GroupView group, Device& device, Ledger& ledger)
      : group_(std::move(group)), device_(device), ledger_(ledger) {}

  int size() const final { return group_.size(); }
  int rank() const final { return group_.member; }

  void all_reduce(Stream& stream, const Tensor& in, const ReduceSpec& spec, const Tensor& out,
                  const CallSite& site) final;
  void all_gather(Stream& stream, const Tensor& in, Dim dim, const Partition& part,
                  const Tensor& out, const CallSite& site) final;
  void reduce_scatter(Stream& stream, const Tensor& in, Dim dim, const Partition& part,
                      const ReduceSpec& spec, const Tensor& out, const CallSite& site) final;
  void all_to_all(Stream& stream, const Tensor& in, Dim split, const Partition& split_part, Dim concat,
                  const Partition& concat_part, const Tensor& out, const CallSite& site) final;
  void broadcast(Stream& stream, const Tensor& in, int root, const Tensor& out,
                 const CallSite& site) final;
  void send(Stream& stream, const Tensor& in, int to, const CallSite& site) final;
  void recv(Stream& stream, const Tensor& out, int from, const CallSite& site) final;

 protected:
  /// Meets the peers, moves the data and returns when nobody needs this rank's tensors any more. `post.out` is
  /// poisoned already unless the operands have a defect. Throws CommError if the ranks disagree or can't meet.
  virtual void exchange(Stream& stream, Post post) = 0;

  const GroupView& group() const { return group_; }
  Device& device() const { return device_; }
  /// CommError for a defect of this rank's operands, where no peers are asked.
  void require_sound(const Call& call) const;

 private:
  void submit(Stream& stream, Call call, const Tensor& in, const Tensor& out);

  GroupView group_;
  Device& device_;
  Ledger& ledger_;
};

/// The communicator of a group of one: copies in to out, or does nothing where both are one tensor; records nothing.
std::unique_ptr<Communicator> make_single_communicator(GroupView group, Device& device, Ledger& ledger);

}  // namespace shardcheck
