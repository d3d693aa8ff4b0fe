// SPDX-License-Identifier: Apache-2.0
// Schedules with alpha-beta costs. Each is one file in sim/algorithms/ and one line in its table.
//
// P ranks, S the payload, a the link's hop latency, B its effective rate per GPU and direction over P ranks. Every
// schedule has a "start" besides: what issuing it and its first synchronisation cost, on any link. Formulas after
// Thakur, Rabenseifner and Gropp 2005 ("Optimization of Collective Communication Operations in MPICH").
#pragma once

#include <string_view>
#include <vector>

#include "sim/collective.hpp"
#include "sim/fact.hpp"

namespace shardcheck::sim {

struct Algorithm {
  std::string_view name;
  bool (*has)(CollectiveKind);
  /// May it run on this link? (The kind is one it has.)
  bool (*runs_on)(const Link&);
  /// Terms that add up to the time. Called for kinds that it has and links that it runs on, P >= 2.
  std::vector<Term> (*terms)(const CollectiveCall&, const Link&);
  /// Its own constants, which no link states.
  std::vector<Constant> (*constants)();
};

/// Neighbours pass parts on. all_reduce 2(P-1) steps, all_gather and reduce_scatter P-1, each of S/P; broadcast P-1
/// hops, pipelined. Any topology. The wire's traffic is the bound itself.
Algorithm ring();
/// Every rank reads what it needs from all peers at once: one hop. all_reduce reads P-1 whole payloads, all_gather
/// and reduce_scatter P-1 parts; broadcast sends P-1 payloads. Needs a way to every peer.
Algorithm one_shot();
/// all_reduce as reduce-scatter and all-gather, each in one hop: 2(P-1)/P S. Needs a way to every peer.
Algorithm two_shot();
/// all_reduce by a switch that adds: each GPU sends its S for the others' parts and the sum of its own part,
/// (1 + 1/P) S in each direction.
Algorithm nvls();
/// all_to_all in P-1 exchanges with one peer at a time, and send and recv.
Algorithm pairwise();

/// All of the above.
std::vector<Algorithm> builtin_algorithms();

/// The schedules of a table, on the numbers of a link. A value that is passed in: one's own schedule is one push_back.
class AlphaBetaModel final : public CollectiveModel {
 public:
  explicit AlphaBetaModel(std::vector<Algorithm> algorithms = builtin_algorithms())
      : algorithms_(std::move(algorithms)) {}
  std::vector<std::string_view> algorithms(CollectiveKind kind) const override;
  std::vector<Constant> constants() const override;

 private:
  std::vector<CollectiveCost> predict(const CollectiveCall& call, const Link& link) const override;
  std::vector<Algorithm> algorithms_;
};

}  // namespace shardcheck::sim
