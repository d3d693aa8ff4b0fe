// SPDX-License-Identifier: Apache-2.0
// The table of all faults: one line per kind. Kind I (quantisation grids against shard borders) needs quantised shards.
#include "harness/faults/kinds.hpp"

namespace shardcheck {

std::vector<Fault> fault_catalogue() {
  std::vector<Fault> all;
  for (const auto& kind :
       {faults::over_reduction, faults::under_reduction, faults::tokens, faults::sections,
        faults::loader_slices, faults::heads, faults::per_head_parameters, faults::statistics,
        faults::units, faults::vocabulary, faults::divergent_ranks, faults::exchanges,
        faults::precision, faults::caches_and_positions}) {
    for (Fault& fault : kind()) all.push_back(std::move(fault));
  }
  return all;
}

}  // namespace shardcheck
