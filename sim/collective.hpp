// SPDX-License-Identifier: Apache-2.0
// How long one collective of a ledger takes on a link: the call, the bound that no schedule beats, and the interface
// of everything that predicts times (the alpha-beta schedules of algorithm.hpp, NCCL's own selection, measured tables).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "sharded/ledger.hpp"
#include "sim/link.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

/// One collective among `ranks` GPUs. Payload as the ledger has it: the whole logical tensor.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::all_reduce;
  int ranks = 1;
  Bytes payload;
  /// all_gather: the largest rank's part (a cut may be uneven); at least payload / ranks. Else not looked at.
  Bytes largest_part{};

  /// Bytes of the part that decides a schedule whose steps move one part: the largest one.
  Bytes part() const;
};

/// f of the bandwidth bound: 2 (P-1)/P for all_reduce, 1 where the switch adds; (P-1)/P for all_gather,
/// reduce_scatter and all_to_all; 1 for broadcast, send and recv. 0 for a group of one.
double traffic_factor(CollectiveKind kind, int ranks, bool switch_reduces);

/// payload x f: what each GPU must at least send (or receive) in one direction.
Bytes least_traffic(const CollectiveCall& call, const Link& link);

/// least_traffic over the stated bandwidth per direction. Nothing is faster.
Seconds bandwidth_bound(const CollectiveCall& call, const Link& link);

/// One named part of a predicted time.
struct Term {
  std::string_view name;  // "start", "hops", "bandwidth"
  Seconds time;
};

/// A predicted time: its terms, which add up to it.
struct CollectiveCost {
  std::string_view algorithm;  // "ring"
  std::vector<Term> terms;
  Seconds total() const;
};

/// Anything that predicts times of collectives.
class CollectiveModel {
 public:
  virtual ~CollectiveModel() = default;

  /// One prediction per algorithm that can run this call on this link, in a fixed order; none for a group of one.
  /// Throws std::logic_error if one of them has a negative or undefined term, or lies below bandwidth_bound: the model
  /// is then wrong, whatever the input was. Precondition: link.connects(call.ranks).
  std::vector<CollectiveCost> costs(const CollectiveCall& call, const Link& link) const;

  /// Names of all algorithms that this model has for a kind, whatever the link.
  virtual std::vector<std::string_view> algorithms(CollectiveKind kind) const = 0;
  /// Constants that belong to the model and to no link.
  virtual std::vector<Constant> constants() const = 0;

 private:
  virtual std::vector<CollectiveCost> predict(const CollectiveCall& call, const Link& link) const = 0;
};

/// The fastest of some predictions; the first one on a tie. Precondition: not empty.
const CollectiveCost& cheapest(std::span<const CollectiveCost> costs);

}  // namespace shardcheck::sim
