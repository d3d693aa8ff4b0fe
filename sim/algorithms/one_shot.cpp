// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"
#include "sim/algorithms/peer_access.hpp"

namespace shardcheck::sim {

namespace {

constexpr double kStartUs = 4.5;

bool has(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather ||
         kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::broadcast;
}

bool runs_on(const Link& link) { return link.reaches_all_peers(); }

std::vector<Term> terms(const CollectiveCall& call, const Link& link) {
  const bool whole = call.kind == CollectiveKind::all_reduce || call.kind == CollectiveKind::broadcast;
  const double peers = call.ranks - 1;
  const Bytes from_each = whole ? call.payload : call.part();
  return {{"start", microseconds(kStartUs)},
          {"hops", link.latency.value},
          {"bandwidth", peers * from_each / peer_access_bandwidth(link, call.ranks)}};
}

std::vector<Constant> constants() {
  return {{"one_shot.start", kStartUs, "us", std::nullopt, Provenance::measured,
           "NCCL 2.30.7 (github.com/NVIDIA/nccl) src/sym_kernels.cc: base of the LL one-shot "
           "kernels before sm100"},
          peer_access_constant()};
}

}  // namespace

Algorithm one_shot() { return {"one_shot", has, runs_on, terms, constants}; }

}  // namespace shardcheck::sim
