// SPDX-License-Identifier: Apache-2.0
#include "sharded/step.hpp"

#include <algorithm>

namespace shardcheck {

std::string_view name(Phase phase) { return phase == Phase::prefill ? "prefill" : "decode"; }

Range visible_keys(const StepSequence& part, std::int64_t window) {
  if (part.count == 0) return {part.first, part.first};
  const std::int64_t oldest = window > 0 ? std::max<std::int64_t>(0, part.first - window + 1) : 0;
  return {oldest, part.first + part.count};
}

std::vector<std::int64_t> Step::positions() const {
  std::vector<std::int64_t> result;
  result.reserve(ids.size());
  for (const StepSequence& part : sequences) {
    for (std::int64_t i = 0; i < part.count; ++i) result.push_back(part.first + i);
  }
  return result;
}

}  // namespace shardcheck
