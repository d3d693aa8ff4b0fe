// SPDX-License-Identifier: Apache-2.0
// What a candidate produced: every tap of every step, per rank, wherever it came from - the sharded program, a
// directory of per-rank files, a user's process. The gates judge this and never ask for its origin.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/reduction.hpp"
#include "model/host_tensor.hpp"
#include "sharded/layout.hpp"
#include "sharded/program.hpp"
#include "sharded/rank_context.hpp"
#include "sharded/step.hpp"
#include "sharded/tap.hpp"

namespace shardcheck {

/// One value of one step: all ranks' parts, in the placement that `layout` states.
struct TapValue {
  std::string name;
  Layout layout;
  /// By rank. Replicas that are bitwise equal share their bytes (data() is the same pointer).
  /// An empty shape {} means: this rank has none (it ended before, or its file lacks the tensor).
  std::vector<HostTensor> ranks;
};

struct StepTaps {
  Step step;
  std::vector<TapValue> values;  // in program order
  const TapValue* find(std::string_view name) const;
  void add(TapValue value);
  std::unordered_map<std::string, std::size_t> index;  // name -> position in values
};

struct TapRun {
  Mesh mesh;
  DType storage = DType::f32;
  DType wire = DType::f32;
  ReduceSpec reduction;
  std::vector<StepTaps> steps;  // in the order they ran
};

/// Collects every tap of a run of the sharded program. Thread safe.
class TapCollector final : public TapSink {
 public:
  TapCollector(const Program& program, const RunSettings& settings, std::span<const Step> steps);
  bool wants(std::string_view) const override { return true; }
  void take(const TapInfo& info, HostTensor value) override;
  /// The run, once all ranks have ended.
  TapRun release() { return std::move(run_); }

 private:
  std::mutex mutex_;
  TapRun run_;
};

}  // namespace shardcheck
