// SPDX-License-Identifier: Apache-2.0
// Do the ranks that met mean the same collective?
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sharded/comm/call.hpp"

namespace shardcheck {

/// What one rank brings to a meeting. Only the owner may write the tensors before and after; the handles keep the
/// memory alive for peers that still read it.
struct Post {
  Call call;
  Tensor in, out;
  // Where ranks meet by events: the rank's stream up to its call, and after it has filled its out.
  std::shared_ptr<const Event> ready = nullptr;
  std::shared_ptr<std::unique_ptr<Event>> filled = nullptr;
};

/// Empty if all posts belong together; else one sentence that says what differs, with every rank's call and value.
/// Compared: kind, site, whole shape, dtype, reduction, dimension, partition, root, sequence number; for a send and its
/// recv the shape and dtype. A defect of one rank's own operands is reported first.
std::string disagreement(std::span<const Post> posts, std::span<const int> members,
                         const std::string& group);

}  // namespace shardcheck
