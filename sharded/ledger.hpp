// SPDX-License-Identifier: Apache-2.0
// What a rank did: one record per op and per collective. The audit compares it, the simulator costs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/reduction.hpp"
#include "model/dtype.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

enum class CollectiveKind {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  recv
};
std::string_view name(CollectiveKind kind);

struct LedgerRecord {
  enum class Kind { op, collective };
  Kind kind = Kind::op;
  std::string site;   // tap name: "layers.3.mlp.down_proj"
  std::string what;   // "linear", "all_reduce", ...
  std::string group;  // mesh axes, "tp" or "dp,tp"; empty for ops
  int group_size = 1;
  DType dtype = DType::f32;  // op: storage dtype; collective: dtype on the wire
  ReduceSpec reduction;      // all_reduce, reduce_scatter
  std::int64_t payload_bytes = 0;  // collective: bytes of the whole logical tensor, the same on every rank
  std::int64_t own_bytes = 0;  // collective: bytes of this rank's own input (send: message; broadcast: payload)
  std::int64_t flops = 0;        // op: 2 per multiply-add
  std::int64_t moved_bytes = 0;  // op: weights + inputs + outputs touched in device memory
  Phase phase = Phase::prefill;
  int step = 0;
  bool operator==(const LedgerRecord&) const = default;
};

/// Records of one rank in the order they were issued.
using Ledger = std::vector<LedgerRecord>;

}  // namespace shardcheck
