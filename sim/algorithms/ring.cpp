// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"

namespace shardcheck::sim {

namespace {

constexpr double kStartUs = 6.6;

bool has(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather ||
         kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::broadcast;
}

bool runs_on(const Link&) { return true; }

std::vector<Term> terms(const CollectiveCall& call, const Link& link) {
  const double neighbours = call.ranks - 1;
  const BytesPerSecond rate = link.effective_bandwidth(call.ranks);
  double hops = neighbours;
  Seconds moving = neighbours * (call.part() / rate);
  if (call.kind == CollectiveKind::all_reduce) {
    hops *= 2.0;
    moving = 2.0 * moving;
  }
  if (call.kind == CollectiveKind::broadcast) moving = call.payload / rate;
  return {
      {"start", microseconds(kStartUs)}, {"hops", hops * link.latency.value}, {"bandwidth", moving}};
}

std::vector<Constant> constants() {
  return {{"ring.start", kStartUs, "us", std::nullopt, Provenance::measured,
           "NCCL 2.30.7 (github.com/NVIDIA/nccl) src/graph/tuning.cc: base latency of Ring with "
           "the LL protocol"}};
}

}  // namespace

Algorithm ring() { return {"ring", has, runs_on, terms, constants}; }

}  // namespace shardcheck::sim
