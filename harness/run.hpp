// SPDX-License-Identifier: Apache-2.0
// What a candidate produced: every tap of every step, per rank, wherever it came from - the sharded program, a
// directory of per-rank files, a user's process. The gates judge this and never ask for its origin.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/reduction.hpp"
#include "model/host_tensor.hpp"
#include "sharded/layout.hpp"
#include "sharded/step.hpp"

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
  std::unordered_map<std::string, std::size_t> index;  // name -> position in values
};

struct TapRun {
  Mesh mesh;
  DType storage = DType::f32;
  DType wire = DType::f32;
  ReduceSpec reduction;
  std::vector<StepTaps> steps;  // in the order they ran
};

}  // namespace shardcheck
