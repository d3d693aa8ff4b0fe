// SPDX-License-Identifier: Apache-2.0
// Which tasks come before which, by streams, events and what the host has waited for; and whether two that touch the
// same bytes are in no order. Both are known when a task is enqueued: nothing depends on when or in which order tasks
// run, so a missing event is found every time.
//
// Any host thread's waiting orders what it waited for before all that any host thread enqueues later: threads order
// themselves by means that can't be seen from here, and a false alarm would be worse than a miss.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/emu/access.hpp"

namespace shardcheck::emu {

/// The task number `time` of a stream, from 1 on. Streams are numbered over the life of the process.
struct Point {
  std::uint32_t stream = 0;
  std::uint64_t time = 0;
};

/// Up to which of its tasks each stream is known to come before (a vector clock). Streams that aren't in it: 0.
class Clock {
 public:
  std::uint64_t operator[](std::uint32_t stream) const;
  void raise(Point point);
  void join(const Clock& other);
  /// Forgets what `other` knows as well.
  void subtract(const Clock& other);
  bool reaches(Point point) const { return (*this)[point.stream] >= point.time; }

 private:
  std::map<std::uint32_t, std::uint64_t> times_;
};

/// What a stream is for this check.
struct StreamOrder {
  std::uint32_t number = 0;
  int label = 0;           // for messages: small, used again
  std::uint64_t time = 0;  // tasks so far
  Clock clock;             // what its next task comes after, beside what the host has waited for

  Point now() const { return {number, time}; }
};

/// A task's accesses to one allocation, as far as a later task can be in conflict with them.
struct PastAccess {
  Access access;
  Point task;
  int label = 0;
  std::string_view name;  // of the task
};

class RaceCheck {
 public:
  /// The host has waited for all that `clock` and `point` say.
  void host_waited(const Clock& clock, Point point);
  /// Drops from a stream's clock what the host has waited for: it comes before everything from now on.
  void shorten(Clock& clock) const { clock.subtract(host_); }

  /// The message for the latest access in `history` that is in conflict with this one of the stream's next task and in
  /// no order with it; nothing if there is none.
  struct Conflict {
    std::string message;
    Point other;
  };
  std::optional<Conflict> find(const std::vector<PastAccess>& history, const StreamOrder& stream,
                               const Access& access, std::string_view name,
                               const Access& allocation) const;

  /// Adds an access of the stream's latest task, and drops those that it makes superfluous: a later task that is in no
  /// order with one of them is in none with this one.
  void add(std::vector<PastAccess>& history, const StreamOrder& stream, const Access& access,
           std::string_view name);

 private:
  bool comes_before(Point past, const StreamOrder& stream) const;

  Clock host_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace shardcheck::emu
