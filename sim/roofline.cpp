// SPDX-License-Identifier: Apache-2.0
#include "sim/roofline.hpp"

#include <fmt/format.h>

#include "model/error.hpp"

namespace shardcheck::sim {

std::string_view name(LimitedBy limit) {
  return limit == LimitedBy::compute ? "compute" : "memory";
}

RooflineTime roofline(Flops flops, Bytes moved, DType dtype, const Gpu& gpu) {
  RooflineTime time;
  time.memory = moved / gpu.memory_bandwidth.value;
  if (flops > Flops(0.0)) {
    const auto peak = gpu.peak.find(dtype);
    if (peak == gpu.peak.end()) {
      throw InputError(fmt::format(
          "gpu {}: no peak rate for {}; add \"peak\".\"{}\" to its file or take another dtype",
          gpu.name, name(dtype), name(dtype)));
    }
    time.compute = flops / peak->second.value;
  }
  return time;
}

}  // namespace shardcheck::sim
