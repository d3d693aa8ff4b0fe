// SPDX-License-Identifier: Apache-2.0
#include "sim/memory.hpp"

namespace shardcheck::sim {

Fact<double> default_memory_reserve() {
  constexpr double reserve = 0.1;
  return {reserve,
          {"memory.reserve", reserve, "1", std::nullopt, Provenance::assumed,
           "what vLLM leaves by default (gpu_memory_utilization 0.9, docs.vllm.ai)"}};
}

MemoryUse memory_use(std::span<const MemoryNeed> ranks, const Gpu& gpu, double reserve) {
  MemoryUse use;
  use.capacity = gpu.memory_size.value;
  use.reserve = use.capacity * reserve;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const MemoryNeed& need = ranks[rank];
    if (need.weights + need.kv_cache <= use.weights + use.kv_cache) continue;
    use.rank = static_cast<int>(rank);
    use.weights = need.weights;
    use.kv_cache = need.kv_cache;
  }
  return use;
}

}  // namespace shardcheck::sim
