// SPDX-License-Identifier: Apache-2.0
#include "harness/wiring_parcel.hpp"

#include "sharded/comm/parcel.hpp"

namespace shardcheck {
namespace {

void write(ParcelWriter& out, const std::vector<int>& ranks) {
  out.value(ranks.size());
  for (const int rank : ranks) out.value(rank);
}

std::vector<int> read_ranks(ParcelReader& in) {
  std::vector<int> ranks(in.value<std::size_t>());
  for (int& rank : ranks) rank = in.value<int>();
  return ranks;
}

}  // namespace

std::string pack_faults(const std::vector<WiringFault>& faults) {
  ParcelWriter out;
  for (const WiringFault& fault : faults) {
    out.text(fault.tap).value(fault.order).value(fault.phase).value(fault.step).text(fault.sentence);
    out.text(fault.cause);
    write(out, fault.ranks);
    write(out, fault.against);
  }
  return out.take();
}

std::vector<WiringFault> unpack_faults(std::string_view bytes) {
  std::vector<WiringFault> faults;
  for (ParcelReader in(bytes); !in.empty();) {
    WiringFault fault;
    fault.tap = in.text();
    fault.order = in.value<int>();
    fault.phase = in.value<Phase>();
    fault.step = in.value<int>();
    fault.sentence = in.text();
    fault.cause = in.text();
    fault.ranks = read_ranks(in);
    fault.against = read_ranks(in);
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace shardcheck
