// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/call_parcel.hpp"

#include "sharded/comm/parcel.hpp"

namespace shardcheck {
namespace {

void write(ParcelWriter& out, const Partition* part) {
  out.value(part != nullptr);
  if (part == nullptr) return;
  out.value(part->extent()).value(part->ranks());
  for (int rank = 0; rank < part->ranks(); ++rank) {
    out.value(part->of(rank).size());
    for (const Range& range : part->of(rank)) out.value(range);
  }
}

std::optional<Partition> read_partition(ParcelReader& in) {
  if (!in.value<bool>()) return std::nullopt;
  const auto extent = in.value<std::int64_t>();
  std::vector<Ranges> per_rank(static_cast<std::size_t>(in.value<int>()));
  for (Ranges& ranges : per_rank) {
    ranges.resize(in.value<std::size_t>());
    for (Range& range : ranges) range = in.value<Range>();
  }
  return Partition(extent, std::move(per_rank));
}

const Partition* pointer(const std::optional<Partition>& part) { return part ? &*part : nullptr; }

}  // namespace

std::string pack_call(const Call& call, const std::string& group, const HostTensor* in) {
  ParcelWriter out;
  out.text(group).value(call.kind).value(call.rows).value(call.cols).value(call.dtype);
  out.value(call.reduction.op).value(call.reduction.order).value(call.reduction.hop);
  out.value(call.dim).value(call.concat);
  write(out, call.part);
  write(out, call.concat_part);
  out.value(call.peer_member).value(call.peer).text(call.device).value(call.sequence).value(call.own_bytes);
  out.text(call.site.site).value(call.site.phase).value(call.site.step).text(call.defect);
  out.value(in != nullptr);
  if (in != nullptr) out.tensor(*in);
  return out.take();
}

void unpack_call(std::string_view bytes, ReceivedCall& received) {
  ParcelReader in(bytes);
  Call& call = received.call;
  received.group = in.text();
  call.kind = in.value<CollectiveKind>();
  call.rows = in.value<std::int64_t>();
  call.cols = in.value<std::int64_t>();
  call.dtype = in.value<DType>();
  call.reduction.op = in.value<ReduceOp>();
  call.reduction.order = in.value<ReduceOrder>();
  call.reduction.hop = in.value<HopRounding>();
  call.dim = in.value<Dim>();
  call.concat = in.value<Dim>();
  received.part = read_partition(in);
  received.concat_part = read_partition(in);
  call.part = pointer(received.part);
  call.concat_part = pointer(received.concat_part);
  call.peer_member = in.value<int>();
  call.peer = in.value<int>();
  received.device = in.text();
  call.device = received.device;
  call.sequence = in.value<std::uint64_t>();
  call.own_bytes = in.value<std::int64_t>();
  call.site.site = in.text();
  call.site.phase = in.value<Phase>();
  call.site.step = in.value<int>();
  call.defect = in.text();
  received.in.reset();
  if (in.value<bool>()) received.in = in.tensor();
}

}  // namespace shardcheck
