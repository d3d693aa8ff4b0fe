// SPDX-License-Identifier: Apache-2.0
// A program traced on the meta device: what every rank would do and hold, without a number being computed.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/verify.hpp"
#include "sim/load.hpp"

namespace shardcheck {

struct TraceOptions {
  RunSettings settings;
  std::int64_t batch = 1;
  std::int64_t sequence = 1;  // tokens of each sequence
};

/// Prefill: all sequences whole. Decode: one token of each at position `sequence`.
std::vector<Step> traced_steps(Phase phase, const TraceOptions& options);

/// Ledgers of one phase, and what each rank holds: its weight shards (a tied weight counts twice where its two modules
/// are cut differently) and the KV cache of the whole batch at its full length (a window keeps only its own length).
sim::RunLoad trace(const Model& model, const Program& program, Phase phase,
                   const TraceOptions& options, const VerifyParts& parts);

std::int64_t weight_bytes(const Program& program, int rank, DType storage);
std::int64_t kv_cache_bytes(const Program& program, int rank, const TraceOptions& options);

}  // namespace shardcheck
