// SPDX-License-Identifier: Apache-2.0
// One rank's call of a collective as data: what the peers must agree on, and what the ledger records of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharded/comm/communicator.hpp"

namespace shardcheck {

/// The ranks of one group, seen from one of them.
struct GroupView {
  std::string name;          // the mesh axes, joined by ','
  std::vector<int> members;  // ranks of the world, in the group's order
  int member = 0;            // which of them this is

  int size() const { return static_cast<int>(members.size()); }
  int world_rank(int of_member) const { return members[static_cast<std::size_t>(of_member)]; }
};
GroupView group_view(const Mesh& mesh, int rank, const std::vector<int>& axes);

struct Call {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::int64_t rows = 0, cols = 0;  // of the whole logical tensor
  DType dtype = DType::f32;
  ReduceSpec reduction;             // all_reduce, reduce_scatter
  Dim dim = Dim::features;          // all_gather, reduce_scatter; all_to_all: the dimension split
  Dim concat = Dim::features;       // all_to_all
  const Partition* part = nullptr;  // of `dim`; the caller's, alive until its call ends
  const Partition* concat_part = nullptr;  // of `concat`
  int peer_member = -1;     // broadcast's root, send's receiver, recv's sender: index in the group
  int peer = -1;            // the same as a rank of the world
  std::string_view device;  // kind of device
  std::uint64_t sequence = 0;  // collectives of the whole group that this communicator had before
  std::int64_t own_bytes = 0;  // of this rank's input
  CallSite site;
  std::string defect;  // what this rank's own operands get wrong; empty if nothing

  std::int64_t payload_bytes() const {
    return rows * cols * static_cast<std::int64_t>(element_size(dtype));
  }
  bool pairwise() const { return kind == CollectiveKind::send || kind == CollectiveKind::recv; }
};

// Each describes a call and checks this rank's operands: shapes against its part, dtypes, aliases. The first rule
// that is broken goes to `defect`; nothing is thrown, so that the error can name the peers' call sites too.
Call all_reduce_call(const GroupView& group, const Tensor& in, const ReduceSpec& spec,
                     const Tensor& out, const CallSite& site);
Call all_gather_call(const GroupView& group, const Tensor& in, Dim dim, const Partition& part,
                     const Tensor& out, const CallSite& site);
Call reduce_scatter_call(const GroupView& group, const Tensor& in, Dim dim, const Partition& part,
                         const ReduceSpec& spec, const Tensor& out, const CallSite& site);
Call all_to_all_call(const GroupView& group, const Tensor& in, Dim split,
                     const Partition& split_part, Dim concat, const Partition& concat_part,
                     const Tensor& out, const CallSite& site);
Call broadcast_call(const GroupView& group, const Tensor& in, int root, const Tensor& out,
                    const CallSite& site);
Call send_call(const GroupView& group, const Tensor& in, int to, const CallSite& site);
Call recv_call(const GroupView& group, const Tensor& out, int from, const CallSite& site);

/// "all_reduce [5, 48] bf16 at layers.0.mlp.down_proj (prefill step 0)".
std::string describe(const Call& call);

/// What the ledger keeps of a call.
LedgerRecord ledger_record(const Call& call, const GroupView& group);

/// True if both name the same elements of the same storage in the same order.
bool same_tensor(const Tensor& a, const Tensor& b);

}  // namespace shardcheck
