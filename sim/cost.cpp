// SPDX-License-Identifier: Apache-2.0
#include "sim/cost.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck::sim {

namespace {

// Adds a time to the entry that `same` finds, or starts a new one.
template <class Entry, class Same>
Entry& entry(std::vector<Entry>& entries, Same same, Entry fresh) {
  const auto found = std::find_if(entries.begin(), entries.end(), same);
  if (found != entries.end()) return *found;
  entries.push_back(std::move(fresh));
  return entries.back();
}

// Times of every distinct collective of a run on one link, by every algorithm.
using Predictions = std::vector<std::vector<CollectiveCost>>;

Seconds compute_time(const RankLoad& rank, const std::vector<RooflineTime>& ops) {
  Seconds sum;
  for (const Uses& use : rank.ops) sum += static_cast<double>(use.count) * ops[use.index].total();
  return sum;
}

Seconds communication_time(const RankLoad& rank, const Predictions& predictions) {
  Seconds sum;
  for (const Uses& use : rank.collectives) {
    const auto& costs = predictions[use.index];
    if (!costs.empty()) sum += static_cast<double>(use.count) * cheapest(costs).total();
  }
  return sum;
}

std::vector<ComputeTerm> compute_terms(const RunLoad& run, const RankLoad& rank,
                                       const std::vector<RooflineTime>& ops) {
  std::vector<ComputeTerm> terms;
  for (const Uses& use : rank.ops) {
    const std::string& what = run.ops[use.index].what;
    const LimitedBy limit = ops[use.index].limited_by();
    ComputeTerm& term = entry(
        terms, [&](const ComputeTerm& t) { return t.what == what && t.limited_by == limit; },
        ComputeTerm{what, limit, 0, Seconds(0.0)});
    term.count += use.count;
    term.time += static_cast<double>(use.count) * ops[use.index].total();
  }
  return terms;
}

std::vector<AlgorithmTime> empty_times(const CollectiveModel& model, CollectiveKind kind) {
  std::vector<AlgorithmTime> times;
  for (const std::string_view algorithm : model.algorithms(kind))
    times.push_back({algorithm, Seconds(0.0)});
  return times;
}

void add_call(KindCost& kind, const CollectiveCall& call, double count,
              const std::vector<CollectiveCost>& costs, const Link& link) {
  kind.payload += count * call.payload;
  kind.traffic += count * least_traffic(call, link);
  kind.bound += count * bandwidth_bound(call, link);
  if (costs.empty()) return;
  const CollectiveCost& best = cheapest(costs);
  kind.time += count * best.total();
  if (kind.cheapest.empty()) {
    kind.cheapest = best.algorithm;
  } else if (("+" + kind.cheapest + "+").find(fmt::format("+{}+", best.algorithm)) ==
             std::string::npos) {
    kind.cheapest += fmt::format("+{}", best.algorithm);
  }
  for (const Term& term : best.terms) {
    entry(
        kind.terms,
        [&](const CommunicationTerm& t) {
          return t.algorithm == best.algorithm && t.term == term.name;
        },
        CommunicationTerm{best.algorithm, term.name, Seconds(0.0)})
        .time += count * term.time;
  }
  for (AlgorithmTime& time : kind.algorithms) {
    const auto found = std::find_if(costs.begin(), costs.end(), [&](const CollectiveCost& c) {
      return c.algorithm == time.algorithm;
    });
    if (found == costs.end()) {
      time.time.reset();
    } else if (time.time) {
      *time.time += count * found->total();
    }
  }
}

std::vector<KindCost> kind_costs(const RunLoad& run, const RankLoad& rank,
                                 const Predictions& predictions, const Link& link,
                                 const CollectiveModel& model) {
  std::vector<KindCost> kinds;
  for (const Uses& use : rank.collectives) {
    const CollectiveLoad& load = run.collectives[use.index];
    KindCost fresh;
    fresh.kind = load.call.kind;
    fresh.group = load.group;
    fresh.ranks = load.call.ranks;
    fresh.algorithms = empty_times(model, load.call.kind);
    KindCost& kind = entry(
        kinds, [&](const KindCost& k) { return k.kind == load.call.kind && k.group == load.group; },
        std::move(fresh));
    kind.calls += use.count;
    add_call(kind, load.call, static_cast<double>(use.count), predictions[use.index], link);
  }
  return kinds;
}

std::vector<AlgorithmTime> times_by_all_reduce(const std::vector<KindCost>& kinds,
                                               const CollectiveModel& model) {
  Seconds others;
  for (const KindCost& kind : kinds) {
    if (kind.kind != CollectiveKind::all_reduce) others += kind.time;
  }
  std::vector<AlgorithmTime> times = empty_times(model, CollectiveKind::all_reduce);
  for (std::size_t i = 0; i < times.size(); ++i) {
    times[i].time = others;
    for (const KindCost& kind : kinds) {
      if (kind.kind != CollectiveKind::all_reduce || !times[i].time) continue;
      if (const auto& alone = kind.algorithms[i].time) {
        *times[i].time += *alone;
      } else {
        times[i].time.reset();
      }
    }
  }
  return times;
}

std::string problem_of(const RunLoad& run, const Link& link) {
  for (const CollectiveLoad& load : run.collectives) {
    if (!link.connects(load.call.ranks)) {
      return fmt::format("connects at most {} GPUs, the group {} has {}", link.group_limit->value,
                         load.group, load.call.ranks);
    }
  }
  return {};
}

}  // namespace

std::optional<Seconds> CostRow::total() const {
  if (!communication) return std::nullopt;
  return compute + *communication;
}

std::optional<Seconds> CostRow::per_step() const {
  if (!communication) return std::nullopt;
  return (compute + *communication) / static_cast<double>(std::max<std::int64_t>(steps, 1));
}

std::optional<double> CostRow::share() const {
  const auto whole = total();
  if (!whole) return std::nullopt;
  return *whole > Seconds(0.0) ? *communication / *whole : 0.0;
}

std::string CostRow::cheapest_all_reduce() const {
  std::string names;
  for (const KindCost& kind : collectives) {
    if (kind.kind != CollectiveKind::all_reduce || kind.cheapest == names) continue;
    names += names.empty() ? kind.cheapest : "+" + kind.cheapest;
  }
  return names;
}

CostRow cost(const RunLoad& run, const Link& link, const Gpu& gpu, const CollectiveModel& model,
             const Fact<double>& reserve) {
  CostRow row;
  row.mesh = run.mesh;
  row.phase = run.phase;
  row.steps = run.steps;
  row.link = link.name;
  row.problem = problem_of(run, link);
  row.memory = memory_use(run.memory, gpu, reserve.value);

  std::vector<RooflineTime> ops;
  ops.reserve(run.ops.size());
  for (const OpLoad& op : run.ops) ops.push_back(roofline(op.flops, op.moved, op.dtype, gpu));
  Predictions predictions(run.collectives.size());
  if (row.problem.empty()) {
    for (std::size_t i = 0; i < predictions.size(); ++i)
      predictions[i] = model.costs(run.collectives[i].call, link);
  }

  Seconds longest;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const Seconds time = compute_time(run.ranks[rank], ops) +
                         communication_time(run.ranks[rank], predictions);
    if (rank > 0 && time <= longest) continue;
    longest = time;
    row.rank = static_cast<int>(rank);
  }
  if (run.ranks.empty()) return row;
  const RankLoad& slowest = run.ranks[static_cast<std::size_t>(row.rank)];
  row.compute = compute_time(slowest, ops);
  row.compute_terms = compute_terms(run, slowest, ops);
  for (const Uses& use : slowest.collectives) {
    row.traffic += static_cast<double>(use.count) *
                   least_traffic(run.collectives[use.index].call, link);
  }
  if (!row.problem.empty()) return row;
  row.communication = communication_time(slowest, predictions);
  row.collectives = kind_costs(run, slowest, predictions, link, model);
  row.by_all_reduce = times_by_all_reduce(row.collectives, model);
  return row;
}

std::vector<CostRow> costs(std::span<const RunLoad> runs, std::span<const Link> links, const Gpu& gpu,
                           const CollectiveModel& model, const Fact<double>& reserve) {
  std::vector<CostRow> rows;
  rows.reserve(runs.size() * links.size());
  for (const RunLoad& run : runs) {
    for (const Link& link : links) rows.push_back(cost(run, link, gpu, model, reserve));
  }
  return rows;
}

}  // namespace shardcheck::sim
