// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/race_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

namespace shardcheck::emu {
namespace {

std::string_view verb(Use use) {
  switch (use) {
    case Use::reads:
      return "reads";
    case Use::writes:
      return "writes";
    case Use::allocates:
      return "allocates";
    case Use::frees:
      return "frees";
  }
  return "";
}

}  // namespace

std::uint64_t Clock::operator[](std::uint32_t stream) const {
  const auto found = times_.find(stream);
  return found == times_.end() ? 0 : found->second;
}

void Clock::raise(Point point) {
  std::uint64_t& time = times_[point.stream];
  time = std::max(time, point.time);
}

void Clock::join(const Clock& other) {
  for (const auto& [stream, time] : other.times_) raise({stream, time});
}

void Clock::subtract(const Clock& other) {
  std::erase_if(times_, [&](const auto& entry) { return other[entry.first] >= entry.second; });
}

void RaceCheck::host_waited(const Clock& clock, Point point) {
  host_.join(clock);
  host_.raise(point);
}

bool RaceCheck::comes_before(Point past, const StreamOrder& stream) const {
  return past.stream == stream.number || host_.reaches(past) || stream.clock.reaches(past);
}

std::optional<RaceCheck::Conflict> RaceCheck::find(const std::vector<PastAccess>& history,
                                                   const StreamOrder& stream, const Access& access,
                                                   std::string_view name,
                                                   const Access& allocation) const {
  for (const PastAccess& past : std::views::reverse(history)) {  // who waits for the latest waits for all
    if (access.use == Use::reads && past.access.use == Use::reads) continue;
    if (comes_before(past.task, stream) || !overlap(access, past.access)) continue;
    const std::uintptr_t begin = std::max(access.begin, past.access.begin);
    const std::uintptr_t end = std::min(access.end(), past.access.end());
    return Conflict{fmt::format("{0}: stream {1} {2} what stream {3} {4} in {5}: no event lies "
                                "between them (bytes {6} to {7} of an "
                                "allocation of {8}); record an event on stream {3} after {5} and "
                                "let stream {1} wait for it before "
                                "{0}",
                                name, stream.label, verb(access.use), past.label,
                                verb(past.access.use), past.name, begin - allocation.begin,
                                end - allocation.begin - 1, allocation.width),
                    past.task};
  }
  return std::nullopt;
}

void RaceCheck::add(std::vector<PastAccess>& history, const StreamOrder& stream,
                    const Access& access, std::string_view name) {
  std::erase_if(history, [&](const PastAccess& past) {
    if (host_.reaches(past.task)) return true;
    const bool as_strong = access.use != Use::reads || past.access.use == Use::reads;
    return as_strong && comes_before(past.task, stream) && covers(access, past.access);
  });
  auto known = names_.find(name);
  if (known == names_.end()) known = names_.emplace(name).first;
  history.push_back({access, stream.now(), stream.label, *known});
}

}  // namespace shardcheck::emu
