// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"
#include "sim/algorithms/peer_access.hpp"

namespace shardcheck::sim {

namespace {

constexpr double kStartUs = 7.8;

bool has(CollectiveKind kind) { return kind == CollectiveKind::all_reduce; }

bool runs_on(const Link& link) { return link.reaches_all_peers(); }

std::vector<Term> terms(const CollectiveCall& call, const Link& link) {
  const double peers = call.ranks - 1;
  const Seconds half = peers * call.part() / peer_access_bandwidth(link, call.ranks);
  return {{"start", microseconds(kStartUs)},
          {"hops", 2.0 * link.latency.value},
          {"reduce_scatter", half},
          {"all_gather", half}};
}

std::vector<Constant> constants() {
  return {{"two_shot.start", kStartUs, "us", std::nullopt, Provenance::measured,
           "NCCL 2.30.7 (github.com/NVIDIA/nccl) src/sym_kernels.cc: base of the two-shot kernel "
           "before sm100"}};
}

}  // namespace

Algorithm two_shot() { return {"two_shot", has, runs_on, terms, constants}; }

}  // namespace shardcheck::sim
