// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/host_tensor.hpp"
#include "sharded/comm/call.hpp"

namespace shardcheck {

/// A call as it reaches another process, with what the call points to.
struct ReceivedCall {
  Call call;
  std::string group;  // of the sender: "tp", or a pair's "tp: 0 to 2"
  std::string device;
  std::optional<Partition> part, concat_part;
  std::optional<HostTensor> in;  // the sender's operand, where data travels with calls and the peers need it
};

/// `in` may be none.
std::string pack_call(const Call& call, const std::string& group, const HostTensor* in);
/// Writes into `received`, which the call's pointers then point into: it must stay where it is.
void unpack_call(std::string_view bytes, ReceivedCall& received);

}  // namespace shardcheck
