// SPDX-License-Identifier: Apache-2.0
#include "sim/algorithm.hpp"

namespace shardcheck::sim {

namespace {

bool has(CollectiveKind kind) { return kind == CollectiveKind::all_reduce; }

bool runs_on(const Link& link) { return link.switch_reduces; }

// The owner of a part asks the switch for its sum, for which every GPU sends its own share of that part; then the
// owner sends the sum once and the switch multiplies it. Over all parts: S + S/P out, S/P + S in.
std::vector<Term> terms(const CollectiveCall& call, const Link& link) {
  const BytesPerSecond rate = link.bandwidth.value * link.in_switch_fraction.value().value;
  return {{"start", link.in_switch_latency.value().value},
          {"shares", call.payload / rate},
          {"sums", call.part() / rate}};
}

std::vector<Constant> constants() { return {}; }

}  // namespace

Algorithm nvls() { return {"nvls", has, runs_on, terms, constants}; }

}  // namespace shardcheck::sim
