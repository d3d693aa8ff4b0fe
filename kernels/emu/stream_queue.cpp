// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/stream_queue.hpp"

#include <fmt/format.h>

#include <exception>

namespace shardcheck::emu {

std::string failure_of(const Moment& moment) {
  if (!moment.queue) return {};
  const StreamQueue::Dropped& dropped = moment.queue->dropped;
  return moment.time > dropped.first && moment.time <= dropped.last ? dropped.why : std::string();
}

void Scheduler::run_until(const Moment& moment) {
  while (!reached(moment)) {
    if (seed_ != 0 && draw() % 2 == 0) {
      if (StreamQueue* const ready = any_ready()) {
        run_front(*ready);
        continue;
      }
    }
    run_front(next_towards(moment));
  }
}

void Scheduler::run_one_towards(const Moment& moment) {
  if (!reached(moment)) run_front(next_towards(moment));
}

/// The stream whose first task must run before the moment can be reached, and can. There is one: an event is recorded
/// before it is waited for, so waiting streams form no circle.
StreamQueue& Scheduler::next_towards(const Moment& moment) const {
  StreamQueue* queue = moment.queue.get();
  while (!reached(queue->tasks.front().after)) queue = queue->tasks.front().after.queue.get();
  return *queue;
}

StreamQueue* Scheduler::any_ready() {
  std::vector<StreamQueue*> ready;
  for (const std::shared_ptr<StreamQueue>& queue : queues_) {
    if (!queue->tasks.empty() && reached(queue->tasks.front().after)) ready.push_back(queue.get());
  }
  return ready.empty() ? nullptr : ready[draw() % ready.size()];
}

void Scheduler::run_front(StreamQueue& queue) {
  const Task task = std::move(queue.tasks.front());
  queue.tasks.pop_front();
  ++queue.done;
  if (!task.run) return;
  try {
    task.run(seed_ == 0 ? 0 : draw() | 1);
  } catch (const std::exception& error) {
    drop_all(queue, error.what());
    throw;
  } catch (...) {
    drop_all(queue, "an error of unknown type");
    throw;
  }
}

void Scheduler::drop_all(const StreamQueue& failed, const std::string& why) {
  for (const std::shared_ptr<StreamQueue>& queue : queues_) {
    if (queue->tasks.empty() && queue.get() != &failed) continue;
    const std::uint64_t first = queue.get() == &failed ? queue->done - 1 : queue->done;
    queue->dropped = {
        first, queue->order.time,
        fmt::format("the work on stream {} was dropped after an error on the device: {}",
                    queue->order.label, why)};
    queue->failure = queue->dropped.why;
    for (const Task& task : queue->tasks) {
      if (task.keeps_memory) task.run(0);
    }
    queue->tasks.clear();
    queue->done = queue->order.time;
  }
}

/// Numbers that depend on the seed and on how many were drawn (splitmix64).
std::uint64_t Scheduler::draw() {
  std::uint64_t x = seed_ + ++drawn_ * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace shardcheck::emu
