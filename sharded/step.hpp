// SPDX-License-Identifier: Apache-2.0
// What runs together: several sequences of different lengths, a chunk of a prompt, or one token each.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sharded/partition.hpp"

namespace shardcheck {

enum class Phase { prefill, decode };
std::string_view name(Phase phase);

/// `count` tokens of one sequence from position `first` on. count may be 0.
struct StepSequence {
  std::int64_t sequence = 0, first = 0, count = 0;
  bool operator==(const StepSequence&) const = default;
};

/// Positions [begin, end) that some query of this part may see: what attention reads from the cache. window 0: all.
Range visible_keys(const StepSequence& part, std::int64_t window);

/// One forward pass. Rows of every activation are the sequences' tokens in this order.
struct Step {
  Phase phase = Phase::prefill;
  int index = 0;  // among the steps of this phase
  std::vector<StepSequence> sequences;
  std::vector<std::int64_t> ids;  // token ids, one per row

  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::vector<std::int64_t> positions() const;  // one per row
};

}  // namespace shardcheck
