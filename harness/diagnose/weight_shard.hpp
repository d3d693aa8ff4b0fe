// SPDX-License-Identifier: Apache-2.0
// What a weight shard holds in place of the plan's slice: looked for, bit by bit, in the whole weights.
#pragma once

#include <string>

#include "model/host_tensor.hpp"
#include "sharded/program.hpp"
#include "sharded/weights.hpp"

namespace shardcheck {

struct ShardFault {
  std::string cause;     // a name of kCauses
  std::string sentence;  // what was found where
};

/// `shard` is what `rank` holds of "X.weight" or "X.bias" of `module`, in the storage dtype, and differs from the slice of
/// the whole that the plan gives it, which has the same shape.
ShardFault explain_shard(const Program& program, WeightStore& weights, const Module& module,
                         bool bias, int rank, const HostTensor& shard);

}  // namespace shardcheck
