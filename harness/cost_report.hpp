// SPDX-License-Identifier: Apache-2.0
// What `shardcheck cost` prints: an aligned table for people, JSON with every constant and its source for machines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost.hpp"
#include "sim/gpu.hpp"
#include "sim/link.hpp"

namespace shardcheck {

/// Rows and all that they were computed from.
struct CostReport {
  std::string model;  // as the user named it
  std::string plan;
  std::string dtype, wire;
  std::int64_t batch = 0, sequence = 0;
  bool fused = false;  // the program was (sharded/fusion.hpp)
  sim::Gpu gpu;
  std::vector<sim::Link> links;
  std::vector<sim::Constant> algorithm_constants;  // CollectiveModel::constants()
  sim::Fact<double> memory_reserve = sim::default_memory_reserve();
  std::vector<sim::CostRow> rows;
};

/// One line per row, a blank line between runs, and a footer: what the times are, the GPU's constants, the GPU of the
/// memory verdict. A run without collectives costs the same on every link and gets one line.
std::string cost_table(const CostReport& report);

/// Schema "shardcheck.cost/1": every row, with terms that add up, and every constant with unit, direction, kind and
/// source. Times in seconds, sizes in bytes.
std::string cost_json(const CostReport& report);

}  // namespace shardcheck
