// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithms/peer_access.hpp"

namespace shardcheck::sim {

namespace {

constexpr double kShareOfRing = 0.93;

}  // namespace

BytesPerSecond peer_access_bandwidth(const Link& link, int ranks) {
  return link.effective_bandwidth(ranks) * kShareOfRing;
}

Constant peer_access_constant() {
  return {"peer_access.share_of_ring_bandwidth",
          kShareOfRing,
          "1",
          std::nullopt,
          Provenance::measured,
          "NCCL 2.30.7 (github.com/NVIDIA/nccl) src/sym_kernels.cc: load/store kernels peak at 344 "
          "GB/s before sm100, "
          "over 368 GB/s of a ring on 8 H200 (github.com/stas00/ml-engineering network/README.md); "
          "sm100 gives 0.94"};
}

}  // namespace shardcheck::sim
