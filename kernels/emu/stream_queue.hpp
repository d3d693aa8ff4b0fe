// SPDX-License-Identifier: Apache-2.0
// Streams as queues of tasks, and who runs when: nothing until the host waits for something, then what that needs, and
// by the seed other tasks that are free to run as well.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emu/race_check.hpp"

namespace shardcheck::emu {

struct StreamQueue;

/// A point in a stream's work: its first `time` tasks. Without a queue: one that is always reached.
struct Moment {
  std::shared_ptr<StreamQueue> queue;
  std::uint64_t time = 0;
};

struct Task {
  /// Null for one that only waits. `order_seed` is what a kernel's blocks and threads are ordered by; 0: as they come.
  std::function<void(std::uint64_t order_seed)> run;
  Moment after;               // of another stream
  bool keeps_memory = false;  // gives or takes memory: runs even where the work around it is dropped
};

struct StreamQueue {
  StreamOrder order;  // order.time: tasks enqueued so far
  std::deque<Task> tasks;
  std::uint64_t done = 0;

  /// The last tasks that an error has dropped: those after `first`, up to `last`, and why.
  struct Dropped {
    std::uint64_t first = 0, last = 0;
    std::string why;
  };
  Dropped dropped;
  std::string failure;  // what the next synchronisation of the stream reports
};

/// Has an error dropped what leads up to this point? The message, or nothing.
std::string failure_of(const Moment& moment);

class Scheduler {
 public:
  /// 0: only what is needed, in order.
  void set_seed(std::uint64_t seed) {
    seed_ = seed;
    drawn_ = 0;
  }
  void add(std::shared_ptr<StreamQueue> queue) { queues_.push_back(std::move(queue)); }
  void remove(const std::shared_ptr<StreamQueue>& queue) { std::erase(queues_, queue); }

  bool reached(const Moment& moment) const {
    return !moment.queue || moment.queue->done >= moment.time;
  }
  /// Runs tasks until the moment is reached. What a task throws drops all other tasks that are waiting, but those that
  /// give or take memory, leaves the reason in the streams that had any, and is thrown on.
  void run_until(const Moment& moment);
  /// One task more of those that run_until would run.
  void run_one_towards(const Moment& moment);

  const std::vector<std::shared_ptr<StreamQueue>>& queues() const { return queues_; }

 private:
  StreamQueue& next_towards(const Moment& moment) const;
  StreamQueue* any_ready();
  void run_front(StreamQueue& queue);
  void drop_all(const StreamQueue& failed, const std::string& why);
  std::uint64_t draw();

  std::vector<std::shared_ptr<StreamQueue>> queues_;
  std::uint64_t seed_ = 0, drawn_ = 0;
};

}  // namespace shardcheck::emu
