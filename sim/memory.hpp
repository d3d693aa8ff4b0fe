// SPDX-License-Identifier: Apache-2.0
// Do the weights and the KV cache fit on every GPU?
#pragma once

#include <span>

#include "sim/fact.hpp"
#include "sim/gpu.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

/// What one rank has to hold.
struct MemoryNeed {
  Bytes weights;
  Bytes kv_cache;  // of all sequences of the batch at their full length
};

/// Part of a GPU's memory that is left to activations, workspaces and the runtime.
Fact<double> default_memory_reserve();

struct MemoryUse {
  int rank = 0;             // that needs most
  Bytes weights, kv_cache;  // of this rank
  Bytes reserve, capacity;
  Bytes free() const { return capacity - reserve - weights - kv_cache; }  // negative: lacking
  bool fits() const { return weights + kv_cache + reserve <= capacity; }  // NaN doesn't
};

/// The rank that needs most; the first one on a tie. No ranks: nothing is needed.
MemoryUse memory_use(std::span<const MemoryNeed> ranks, const Gpu& gpu, double reserve);

}  // namespace shardcheck::sim
