// SPDX-License-Identifier: Apache-2.0
// Time of one op on a GPU: its flops at the peak rate or its bytes at the memory's rate, whichever takes longer.
// Williams, Waterman and Patterson 2009. No kernel start, no wave or tile losses: a lower bound, and reported as such.
#pragma once

#include <string_view>

#include "model/dtype.hpp"
#include "sim/gpu.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

enum class LimitedBy { compute, memory };
std::string_view name(LimitedBy limit);

struct RooflineTime {
  Seconds compute;  // flops / peak
  Seconds memory;   // bytes / memory bandwidth
  LimitedBy limited_by() const { return compute > memory ? LimitedBy::compute : LimitedBy::memory; }
  Seconds total() const { return compute > memory ? compute : memory; }
};

/// Throws InputError if there are flops and the GPU's file states no peak for the dtype.
RooflineTime roofline(Flops flops, Bytes moved, DType dtype, const Gpu& gpu);

}  // namespace shardcheck::sim
