// SPDX-License-Identifier: Apache-2.0
// Exchanges of a program that bring nothing: what they move, every rank had, or the plan throws away later.
#pragma once

#include <cstdint>
#include <vector>

#include "sharded/program.hpp"

namespace shardcheck {

struct WastedExchange {
  Finding finding;         // rule redundant_collective or all_reduce_then_slice
  std::int64_t bytes = 0;  // of whole values, per token, at two bytes an element
};

/// In program order, of both phases, each once:
/// a broadcast of a value that every rank holds; a gather, slice or all_to_all undone by the next step; a gather that all
/// its readers slice again, through ops that would take the parts as well; the same gather of the same value twice; and,
/// for a reduction, an all_reduce that is only sliced.
std::vector<WastedExchange> wasted_exchanges(const Program& program);

}  // namespace shardcheck
