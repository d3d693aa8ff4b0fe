// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"

namespace shardcheck::sim {

namespace {

constexpr double kStartUs = 6.6;

bool has(CollectiveKind kind) {
  return kind == CollectiveKind::all_to_all || kind == CollectiveKind::send ||
         kind == CollectiveKind::recv;
}

bool runs_on(const Link&) { return true; }

std::vector<Term> terms(const CollectiveCall& call, const Link& link) {
  const bool exchange = call.kind == CollectiveKind::all_to_all;
  const double steps = exchange ? call.ranks - 1 : 1;
  // One pair talks at a time: a mesh gives it one wire of the GPU, unless all exchanges run at once.
  const BytesPerSecond rate = link.effective_bandwidth(exchange ? call.ranks : 2);
  return {{"start", microseconds(kStartUs)},
          {"hops", steps * link.latency.value},
          {"bandwidth", exchange ? steps * call.part() / rate : call.payload / rate}};
}

std::vector<Constant> constants() {
  return {{"pairwise.start", kStartUs, "us", std::nullopt, Provenance::assumed, "as ring.start"}};
}

}  // namespace

Algorithm pairwise() { return {"pairwise", has, runs_on, terms, constants}; }

}  // namespace shardcheck::sim
