// SPDX-License-Identifier: Apache-2.0
#include "sharded/step.hpp"

namespace shardcheck {

std::string_view name(Phase phase) { return phase == Phase::prefill ? "prefill" : "decode"; }

std::vector<std::int64_t> Step::positions() const {
  std::vector<std::int64_t> result;
  result.reserve(ids.size());
  for (const StepSequence& part : sequences) {
    for (std::int64_t i = 0; i < part.count; ++i) result.push_back(part.first + i);
  }
  return result;
}

}  // namespace shardcheck
