// SPDX-License-Identifier: Apache-2.0
#include "sim/load.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

namespace shardcheck::sim {

namespace {

CollectiveKind kind_of(const LedgerRecord& record) {
  constexpr std::array kinds{
      CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
      CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::send,
      CollectiveKind::recv};
  const auto found = std::find_if(kinds.begin(), kinds.end(),
                                  [&](CollectiveKind k) { return name(k) == record.what; });
  if (found == kinds.end()) {
    throw std::invalid_argument(fmt::format(
        "{}: the ledger records a collective \"{}\", which is none", record.site, record.what));
  }
  return *found;
}

// Numbers of the distinct things met, in the order they were first met.
template <class Key>
class Numbering {
 public:
  std::pair<std::size_t, bool> number(Key key) {
    const auto [place, added] = numbers_.emplace(std::move(key), numbers_.size());
    return {place->second, added};
  }

 private:
  std::map<Key, std::size_t> numbers_;
};

using Place = std::tuple<std::string, std::string, int>;  // site, group, step

void count(std::vector<Uses>& uses, std::size_t index) {
  const auto found = std::find_if(uses.begin(), uses.end(),
                                  [&](const Uses& u) { return u.index == index; });
  if (found == uses.end()) {
    uses.push_back({index, 1});
  } else {
    ++found->count;
  }
}

}  // namespace

RunLoad fold(const Mesh& mesh, Phase phase, std::span<const Ledger> ledgers,
             std::vector<MemoryNeed> memory) {
  if (ledgers.size() != static_cast<std::size_t>(mesh.ranks()) || memory.size() != ledgers.size()) {
    throw std::invalid_argument(fmt::format("{} ledgers and {} memory needs for a mesh of {} ranks",
                                            ledgers.size(), memory.size(), mesh.ranks()));
  }
  RunLoad run{mesh, phase, 0, {}, {}, std::vector<RankLoad>(ledgers.size()), std::move(memory)};

  std::map<Place, std::int64_t> largest_part;
  std::set<int> steps;
  for (const Ledger& ledger : ledgers) {
    for (const LedgerRecord& record : ledger) {
      if (record.phase != phase) continue;
      steps.insert(record.step);
      if (record.kind != LedgerRecord::Kind::collective ||
          record.what != name(CollectiveKind::all_gather))
        continue;
      std::int64_t& largest = largest_part[{record.site, record.group, record.step}];
      largest = std::max(largest, record.own_bytes);
    }
  }
  run.steps = static_cast<std::int64_t>(steps.size());

  Numbering<std::tuple<std::string, DType, std::int64_t, std::int64_t>> ops;
  Numbering<std::tuple<CollectiveKind, std::string, int, std::int64_t, std::int64_t>> collectives;
  for (std::size_t rank = 0; rank < ledgers.size(); ++rank) {
    for (const LedgerRecord& record : ledgers[rank]) {
      if (record.phase != phase) continue;
      if (record.kind == LedgerRecord::Kind::op) {
        const auto [index, added] = ops.number(
            {record.what, record.dtype, record.flops, record.moved_bytes});
        if (added)
          run.ops.push_back(
              {record.what, record.dtype, flops(record.flops), bytes(record.moved_bytes)});
        count(run.ranks[rank].ops, index);
        continue;
      }
      const CollectiveKind kind = kind_of(record);
      std::int64_t part = 0;
      if (kind == CollectiveKind::all_gather) {
        part = std::min(largest_part[{record.site, record.group, record.step}], record.payload_bytes);
      }
      const auto [index, added] = collectives.number(
          {kind, record.group, record.group_size, record.payload_bytes, part});
      if (added) {
        run.collectives.push_back(
            {{kind, record.group_size, bytes(record.payload_bytes), bytes(part)}, record.group});
      }
      count(run.ranks[rank].collectives, index);
    }
  }
  return run;
}

}  // namespace shardcheck::sim
