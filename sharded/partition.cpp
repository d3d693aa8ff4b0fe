// SPDX-License-Identifier: Apache-2.0
#include "sharded/partition.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace shardcheck {

std::int64_t total(const Ranges& ranges) {
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.size();
  return sum;
}

std::string to_string(const Ranges& ranges) {
  if (ranges.empty()) return "[)";
  std::string text;
  for (const Range& range : ranges) {
    text += fmt::format("{}[{},{})", text.empty() ? "" : "+", range.begin, range.end);
  }
  return text;
}

Ranges normalized(Ranges ranges) {
  std::erase_if(ranges, [](const Range& range) { return range.size() <= 0; });
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  Ranges joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

Ranges compose(const Ranges& whole, const Ranges& inner) {
  Ranges result;
  for (const Range& wanted : inner) {
    std::int64_t start = 0;  // position of `part` in the concatenation of `whole`
    for (const Range& part : whole) {
      const std::int64_t begin = std::max(wanted.begin, start);
      const std::int64_t end = std::min(wanted.end, start + part.size());
      if (begin < end) result.push_back({part.begin + begin - start, part.begin + end - start});
      start += part.size();
    }
  }
  return result;
}

Ranges locate(const Ranges& whole, const Ranges& inner) {
  Ranges result;
  for (const Range& wanted : inner) {
    std::int64_t start = 0;
    for (const Range& part : whole) {
      const std::int64_t begin = std::max(wanted.begin, part.begin);
      const std::int64_t end = std::min(wanted.end, part.end);
      if (begin < end) {
        const Range found{start + begin - part.begin, start + end - part.begin};
        if (!result.empty() && result.back().end == found.begin) {
          result.back().end = found.end;
        } else {
          result.push_back(found);
        }
      }
      start += part.size();
    }
  }
  return result;
}

Ranges intersection(const Ranges& a, const Ranges& b) {
  Ranges result;
  for (const Range& x : a) {
    for (const Range& y : b) {
      const std::int64_t begin = std::max(x.begin, y.begin), end = std::min(x.end, y.end);
      if (begin < end) result.push_back({begin, end});
    }
  }
  return result;
}

Ranges without(const Ranges& whole, const Range& taken) {
  Ranges result;
  for (const Range& range : whole) {
    const Range before{range.begin, std::min(range.end, taken.begin)};
    const Range after{std::max(range.begin, taken.end), range.end};
    if (taken.size() <= 0) {
      result.push_back(range);
      continue;
    }
    if (before.size() > 0) result.push_back(before);
    if (after.size() > 0) result.push_back(after);
  }
  return result;
}

Partition Partition::balanced(std::int64_t extent, int ranks, std::int64_t unit) {
  const std::int64_t units = extent / unit;
  std::vector<Ranges> per_rank(static_cast<std::size_t>(ranks));
  std::int64_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t mine = units / ranks + (rank < units % ranks ? 1 : 0);
    if (mine > 0)
      per_rank[static_cast<std::size_t>(rank)] = {{begin * unit, (begin + mine) * unit}};
    begin += mine;
  }
  return {extent, std::move(per_rank)};
}

Partition Partition::chunked(std::int64_t extent, int ranks, std::int64_t unit) {
  const std::int64_t units = extent / unit;
  const std::int64_t chunk = (units + ranks - 1) / ranks;
  std::vector<Ranges> per_rank(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t begin = std::min(rank * chunk, units);
    const std::int64_t end = std::min(begin + chunk, units);
    if (begin < end) per_rank[static_cast<std::size_t>(rank)] = {{begin * unit, end * unit}};
  }
  return {extent, std::move(per_rank)};
}

std::string Partition::defect(bool overlap_allowed) const {
  struct Owned {
    Range range;
    int rank;
  };
  std::vector<Owned> all;
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const Range& range : of(rank)) {
      if (range.begin < 0 || range.end > extent_ || range.begin > range.end) {
        return fmt::format("rank {} has [{},{}), outside [0,{})", rank, range.begin, range.end,
                           extent_);
      }
      if (range.size() > 0) all.push_back({range, rank});
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Owned& a, const Owned& b) { return a.range.begin < b.range.begin; });
  std::int64_t covered = 0;
  int last = -1;
  for (const Owned& owned : all) {
    if (owned.range.begin > covered) {
      return fmt::format("no rank has [{},{})", covered, owned.range.begin);
    }
    if (owned.range.begin < covered && !overlap_allowed) {
      return fmt::format("ranks {} and {} both have [{},{})", last, owned.rank, owned.range.begin,
                         std::min(covered, owned.range.end));
    }
    covered = std::max(covered, owned.range.end);
    last = owned.rank;
  }
  if (covered < extent_) return fmt::format("no rank has [{},{})", covered, extent_);
  return {};
}

}  // namespace shardcheck
