// SPDX-License-Identifier: Apache-2.0
// What connects the GPUs of a group: a file of fixtures/links, or the user's own.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/fact.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

///   switched      every GPU reaches every other at its full rate through a switch
///   fabric        the same through a network, one NIC (or its share) per GPU
///   bus           PCIe switches or a host bridge; sharing of an upstream link is not modelled
///   mesh          a wire per pair: two GPUs see one of them, not the sum
///   partial_mesh  some pairs have no wire: rings only
///   pair          two GPUs and no more
enum class Topology { switched, fabric, bus, mesh, partial_mesh, pair };
std::string_view name(Topology topology);

struct Link {
  std::string name;   // the file's stem, as typed after --link: "nvlink4-nvswitch3"
  std::string title;  // "NVLink 4 with NVSwitch 3 (HGX H100, H200)"
  Topology topology = Topology::switched;
  Fact<BytesPerSecond> bandwidth;  // stated, per GPU and direction, all wires or NIC shares of the GPU together
  Fact<double> effective_fraction;  // of it, what a large ring all-reduce reaches (its bus bandwidth)
  Fact<Seconds> latency;            // one hop, one way
  std::optional<Fact<BytesPerSecond>> peer_bandwidth;  // stated, one pair, per direction; bandwidth if absent
  std::optional<Fact<int>> group_limit;  // most GPUs that one such link connects; no limit if absent
  bool switch_reduces = false;           // the switch adds (NVLink SHARP): all_reduce has f = 1
  std::optional<Fact<double>> in_switch_fraction;  // of bandwidth, for the (1 + 1/P) S that such a switch moves
  std::optional<Fact<Seconds>> in_switch_latency;  // a whole all-reduce of nothing
  std::vector<Constant> constants;                 // everything the file states

  /// Can a group of so many GPUs be connected by it?
  bool connects(int ranks) const { return !group_limit || ranks <= group_limit->value; }
  /// Does every GPU have its own way to each other one, so that all peers are reached in one hop?
  bool reaches_all_peers() const { return topology != Topology::partial_mesh; }
  /// Rate per GPU and direction that a schedule over `ranks` GPUs gets: the stated rate, or that of the wires to the
  /// ranks - 1 peers if they are fewer, times effective_fraction.
  BytesPerSecond effective_bandwidth(int ranks) const;
};

/// Reads a link file, schema "shardcheck.link/1". Throws InputError naming file, key, rule and remedy.
Link read_link(const std::filesystem::path& file);
/// By file or shipped name.
Link load_link(const std::string& file_or_name);
/// All shipped links, by name.
std::vector<Link> shipped_links();

}  // namespace shardcheck::sim
