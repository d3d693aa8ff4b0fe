// SPDX-License-Identifier: Apache-2.0
// What a run costs on a GPU and a link: one row per mesh, phase and link.
//
// A rank's time is the sum of its ops' rooflines and its collectives; nothing overlaps. The rank that takes longest
// decides, and every number of a row is that rank's, so that compute and communication add up to the total.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/collective.hpp"
#include "sim/gpu.hpp"
#include "sim/load.hpp"
#include "sim/roofline.hpp"

namespace shardcheck::sim {

/// Ops of one kind that are limited by the same thing.
struct ComputeTerm {
  std::string what;
  LimitedBy limited_by = LimitedBy::memory;
  std::int64_t count = 0;
  Seconds time;
};

struct AlgorithmTime {
  std::string_view algorithm;
  std::optional<Seconds> time;  // nothing: it can't run on this link
};

/// A term of the fastest algorithms' times.
struct CommunicationTerm {
  std::string_view algorithm, term;
  Seconds time;
};

/// All collectives of one kind over one group.
struct KindCost {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::string group;
  int ranks = 1;
  std::int64_t calls = 0;
  Bytes payload;                          // sum over calls
  Bytes traffic;                          // sum of payload x f
  Seconds bound;                          // traffic over the stated bandwidth
  Seconds time;                           // each call by its fastest algorithm
  std::string cheapest;                   // its name; "a+b" where calls of different size differ
  std::vector<CommunicationTerm> terms;   // add up to time
  std::vector<AlgorithmTime> algorithms;  // all calls by one algorithm
};

struct CostRow {
  Mesh mesh;
  Phase phase = Phase::prefill;
  std::string link;
  /// Empty, or why there is no time of communication: "connects at most 2 GPUs, the group tp has 4".
  std::string problem;
  int rank = 0;            // that decides
  std::int64_t steps = 1;  // forward passes that the times below are the sum of
  Seconds compute;
  std::vector<ComputeTerm> compute_terms;  // add up to compute
  std::optional<Seconds> communication;
  std::vector<KindCost> collectives;
  /// The whole communication with every all_reduce by one algorithm, other kinds by their fastest one.
  std::vector<AlgorithmTime> by_all_reduce;
  Bytes traffic;  // bytes that this rank must at least send in one direction: sum of payload x f
  MemoryUse memory;

  std::optional<Seconds> total() const;     // prefill: TTFT
  std::optional<Seconds> per_step() const;  // decode: TPOT
  std::optional<double> share() const;      // communication / total; 0 where nothing takes time
  std::string cheapest_all_reduce() const;  // empty if there is none
};

/// One row. Throws InputError if the GPU's file lacks a peak, std::logic_error if the model breaks a bound.
CostRow cost(const RunLoad& run, const Link& link, const Gpu& gpu, const CollectiveModel& model,
             const Fact<double>& reserve = default_memory_reserve());

/// Rows of all runs on all links, run by run.
std::vector<CostRow> costs(std::span<const RunLoad> runs, std::span<const Link> links,
                           const Gpu& gpu, const CollectiveModel& model,
                           const Fact<double>& reserve = default_memory_reserve());

}  // namespace shardcheck::sim
