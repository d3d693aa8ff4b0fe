// SPDX-License-Identifier: Apache-2.0
#include "sim/link.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/shipped.hpp"
#include "sim/fact_file.hpp"

namespace shardcheck::sim {

namespace {

constexpr std::array<std::string_view, 6> kTopologies{"switched", "fabric",       "bus",
                                                      "mesh",     "partial_mesh", "pair"};

}  // namespace

std::string_view name(Topology topology) {
  return kTopologies.at(static_cast<std::size_t>(topology));
}

BytesPerSecond Link::effective_bandwidth(int ranks) const {
  BytesPerSecond rate = bandwidth.value;
  if (peer_bandwidth)
    rate = std::min(rate, peer_bandwidth->value * static_cast<double>(std::max(ranks - 1, 1)));
  return rate * effective_fraction.value;
}

Link read_link(const std::filesystem::path& path) {
  FactFile file(path, "shardcheck.link/1");
  Link link;
  link.name = path.stem().string();
  link.title = file.text("name");
  const auto keep = [&](auto fact) {
    link.constants.push_back(fact.stated);
    return fact;
  };
  link.bandwidth = keep(file.bandwidth("bandwidth"));
  link.effective_fraction = keep(file.fraction("effective_fraction"));
  link.latency = keep(file.latency("latency"));
  const auto topology = keep(file.word("topology", kTopologies));
  link.topology = static_cast<Topology>(
      std::find(kTopologies.begin(), kTopologies.end(), topology.value) - kTopologies.begin());
  if (file.has("peer_bandwidth")) {
    link.peer_bandwidth = keep(file.bandwidth("peer_bandwidth"));
    if (link.peer_bandwidth->value > link.bandwidth.value) {
      file.refuse("peer_bandwidth",
                  "is above \"bandwidth\", but one pair can't see more than all wires of a GPU");
    }
  } else if (link.topology == Topology::mesh) {
    file.refuse("peer_bandwidth", "is missing; a mesh needs the rate of one pair");
  }
  if (file.has("group_limit")) link.group_limit = keep(file.count("group_limit", 2));
  if (link.topology == Topology::pair && (!link.group_limit || link.group_limit->value != 2)) {
    file.refuse("group_limit", "must be 2 GPUs in the topology \"pair\"");
  }
  link.switch_reduces = keep(file.flag("switch_reduces")).value;
  if (link.switch_reduces) {
    if (link.topology != Topology::switched && link.topology != Topology::fabric) {
      file.refuse("switch_reduces",
                  fmt::format("is true, but the topology \"{}\" has no switch; write false",
                              name(link.topology)));
    }
    link.in_switch_fraction = keep(file.fraction("in_switch_fraction"));
    link.in_switch_latency = keep(file.latency("in_switch_latency"));
  }
  file.finish();
  return link;
}

Link load_link(const std::string& file_or_name) {
  return read_link(find_shipped("links", file_or_name));
}

std::vector<Link> shipped_links() {
  std::vector<Link> links;
  for (const std::string& name : shipped_names("links")) links.push_back(load_link(name));
  return links;
}

}  // namespace shardcheck::sim
