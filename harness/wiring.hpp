// SPDX-License-Identifier: Apache-2.0
// Gate G0: bitwise facts about how values travel - replicas, the KV cache, weight shards, producer to consumer.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "harness/judge.hpp"
#include "harness/run.hpp"
#include "sharded/program.hpp"
#include "sharded/runner.hpp"

namespace shardcheck {

/// One broken fact.
struct WiringFault {
  std::string tap;
  int order = 0;  // of the tap in the program; weights count as their module's
  Phase phase = Phase::prefill;
  int step = 0;
  std::vector<int> ranks;
  std::string sentence;
  std::vector<int> against = {};  // replicas: as many ranks that hold the other bits; empty if `ranks` are fewer
  std::string cause = {};  // name of a cause (harness/diagnose/causes.hpp) that the bits alone show; or empty
};

/// Compares every weight shard of a rank with the slice of the whole weight that the plan gives it. Thread safe; called
/// from RunOptions::inspect of every rank.
class WeightInspector {
 public:
  explicit WeightInspector(WeightStore& weights) : weights_(weights) {}
  void inspect(RankContext& context);
  std::vector<WiringFault> faults() const { return faults_; }
  std::int64_t shards() const { return shards_; }

 private:
  WeightStore& weights_;
  std::mutex mutex_;
  std::vector<WiringFault> faults_;
  std::int64_t shards_ = 0;
};

/// Replicas: ranks that hold the same part of a value have the same bits where a collective produced it, or where the
/// same op computed it from bitwise equal inputs of the same shape. Named are the ranks that differ from the most.
std::vector<WiringFault> check_replicas(const Program& program, const TapRun& run);

/// Where replicas are evenly divided, those are named that lie further from the recomputation.
void settle_ties(std::vector<WiringFault>& faults, std::span<const TapScore> scores);

/// What attention read in a step equals the keys and values of all earlier steps and this one, restricted to the
/// positions that some query of the step may see.
std::vector<WiringFault> check_caches(const Program& program, const TapRun& run);

/// Hash mismatches between a value's producer and a consumer, as faults.
std::vector<WiringFault> from_mismatches(const Program& program,
                                         const std::vector<WiringMismatch>& mismatches);

/// Position of a tap in a phase's program; the number of instructions if it has none.
int program_order(const Program& program, Phase phase, std::string_view tap);

}  // namespace shardcheck
