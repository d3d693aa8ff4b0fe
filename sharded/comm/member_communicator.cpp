// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/member_communicator.hpp"

#include <fmt/format.h>

#include <utility>

#include "model/error.hpp"
#include "sharded/comm/movement.hpp"

namespace shardcheck {

void MemberCommunicator::all_reduce(Stream& stream, const Tensor& in, const ReduceSpec& spec,
                                    const Tensor& out, const CallSite& site) {
  submit(stream, all_reduce_call(group_, in, spec, out, site), in, out);
}

void MemberCommunicator::all_gather(Stream& stream, const Tensor& in, Dim dim,
                                    const Partition& part, const Tensor& out, const CallSite& site) {
  submit(stream, all_gather_call(group_, in, dim, part, out, site), in, out);
}

void MemberCommunicator::reduce_scatter(Stream& stream, const Tensor& in, Dim dim,
                                        const Partition& part, const ReduceSpec& spec,
                                        const Tensor& out, const CallSite& site) {
  submit(stream, reduce_scatter_call(group_, in, dim, part, spec, out, site), in, out);
}

void MemberCommunicator::all_to_all(Stream& stream, const Tensor& in, Dim split,
                                    const Partition& split_part, Dim concat,
                                    const Partition& concat_part, const Tensor& out,
                                    const CallSite& site) {
  submit(stream, all_to_all_call(group_, in, split, split_part, concat, concat_part, out, site), in,
         out);
}

void MemberCommunicator::broadcast(Stream& stream, const Tensor& in, int root, const Tensor& out,
                                   const CallSite& site) {
  submit(stream, broadcast_call(group_, in, root, out, site), in, out);
}

void MemberCommunicator::send(Stream& stream, const Tensor& in, int to, const CallSite& site) {
  submit(stream, send_call(group_, in, to, site), in, {});
}

void MemberCommunicator::recv(Stream& stream, const Tensor& out, int from, const CallSite& site) {
  submit(stream, recv_call(group_, out, from, site), {}, out);
}

void MemberCommunicator::submit(Stream& stream, Call call, const Tensor& in, const Tensor& out) {
  call.device = device_.kind();
  const bool in_place = group_.size() == 1 && in && same_tensor(in, out);
  if (call.defect.empty() && out && !in_place) device_.poison(stream, out);
  if (group_.size() == 1) {
    require_sound(call);
    if (!in_place) exchange(stream, {std::move(call), in, out});
    return;
  }
  LedgerRecord record = ledger_record(call, group_);
  exchange(stream, {std::move(call), in, out});
  ledger_.push_back(std::move(record));
}

void MemberCommunicator::require_sound(const Call& call) const {
  if (call.defect.empty()) return;
  throw CommError(fmt::format("{} over {}: operands that don't fit: {}", describe(call),
                              group_.name, call.defect));
}

namespace {

class SingleCommunicator final : public MemberCommunicator {
 public:
  using MemberCommunicator::MemberCommunicator;

 private:
  void exchange(Stream& stream, Post post) override {
    Movement movement(device(), stream, {&post, 1});
    for (int share = 0; share < movement.shares(); ++share) movement.carry_out(share);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator(GroupView group, Device& device, Ledger& ledger) {
  return std::make_unique<SingleCommunicator>(std::move(group), device, ledger);
}

}  // namespace shardcheck
