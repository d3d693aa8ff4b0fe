// SPDX-License-Identifier: Apache-2.0
// A ledger, folded: its distinct ops and collectives with their counts, so that a model of 80 equal layers is costed
// once per kind of record and not once per record.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sharded/ledger.hpp"
#include "sharded/mesh.hpp"
#include "sim/collective.hpp"
#include "sim/memory.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

/// Equal ops: the same kind, dtype, flops and bytes.
struct OpLoad {
  std::string what;
  DType dtype = DType::f32;
  Flops flops;  // of one
  Bytes moved;  // of one
};

/// Equal collectives of equal groups.
struct CollectiveLoad {
  CollectiveCall call;
  std::string group;  // mesh axes: "tp"
};

/// How often a rank does one of RunLoad::ops or ::collectives.
struct Uses {
  std::size_t index = 0;
  std::int64_t count = 0;
};

struct RankLoad {
  std::vector<Uses> ops, collectives;
};

/// One phase of one run on one mesh: what each rank does and holds.
struct RunLoad {
  Mesh mesh;
  Phase phase = Phase::prefill;
  std::int64_t steps = 0;  // forward passes of this phase
  std::vector<OpLoad> ops;
  std::vector<CollectiveLoad> collectives;
  std::vector<RankLoad> ranks;
  std::vector<MemoryNeed> memory;  // by rank
};

/// Folds the records of one phase of all ranks' ledgers. The largest part of an all_gather is the largest own_bytes of
/// the ranks' records with the same site, step and group. Throws std::invalid_argument if there is not one ledger and
/// one memory need per rank of the mesh, or a collective's kind is unknown.
RunLoad fold(const Mesh& mesh, Phase phase, std::span<const Ledger> ledgers,
             std::vector<MemoryNeed> memory);

}  // namespace shardcheck::sim
