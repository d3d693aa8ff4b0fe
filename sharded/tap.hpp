// SPDX-License-Identifier: Apache-2.0
// Taps: every value of the program, per rank, in the placement it has there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/host_tensor.hpp"
#include "sharded/layout.hpp"
#include "sharded/step.hpp"

namespace shardcheck {

struct TapInfo {
  std::string_view name;
  Phase phase = Phase::prefill;
  int step = 0;
  int rank = 0;
  const Layout* layout = nullptr;
};

/// Receives values. Called from the rank's thread; calls of different ranks may overlap.
/// A run without a sink copies nothing to the host.
class TapSink {
 public:
  virtual ~TapSink() = default;
  virtual bool wants(std::string_view tap) const = 0;
  virtual void take(const TapInfo& info, HostTensor value) = 0;
};

}  // namespace shardcheck
