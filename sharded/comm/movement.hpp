// SPDX-License-Identifier: Apache-2.0
// Which bytes a collective moves, by Device::copy and Device::reduce_n alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sharded/comm/agreement.hpp"

namespace shardcheck {

/// The work of one collective, divided into shares. Done once each, by any thread, in any order or at the same time,
/// they fill every member's out; no two shares write the same element. A reduction's bits are those of Device::reduce_n
/// over the whole tensor, however the work is divided.
class Movement {
 public:
  /// Precondition: the posts agree, and stay as they are. `device` must reach the memory of all of them.
  Movement(Device& device, Stream& stream, std::span<const Post> posts);
  /// all_reduce: one per block of the flat tensor; else one per member, its out.
  int shares() const { return shares_; }
  /// Enqueues one share on the stream.
  void carry_out(int share);
  /// Enqueues everything that fills one member's out and nothing else: another division of the same work, for ranks
  /// that each have a stream.
  void fill(int member);

 private:
  void all_reduce(int block);
  void reduce_columns(int member);
  void reduce_scatter(int member);
  void all_gather(int member);
  void all_to_all(int member);
  void reduce(std::int64_t begin, std::int64_t end, int member, std::int64_t out_begin);

  Device& device_;
  Stream& stream_;
  std::span<const Post> posts_;
  const Call& call_;
  int shares_;
  // The members' tensors as `device` sees them, and views that slide over them: copying a handle costs an atomic
  // increment of a counter that all ranks share, moving a view costs nothing.
  std::vector<Tensor> in_, out_, in_view_, out_view_;
};

}  // namespace shardcheck
