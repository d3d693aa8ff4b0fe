// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "model/error.hpp"
#include "sharded/comm/movement.hpp"
#include "sharded/comm/rank_error.hpp"
#include "sharded/comm/turn.hpp"

namespace shardcheck {
namespace {

/// Waking up another rank costs as much time as moving about so many bytes, counted as payload x ranks.
constexpr std::int64_t kBytesPerWorker = 256 * 1024;

/// How long a rank looks for a signal before it sleeps, giving its core to whoever has work between two looks: waking up
/// a sleeping thread took about 10 us on a virtual machine.
constexpr std::chrono::microseconds kPatience{20};

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

Rendezvous::Rendezvous(int ranks)
    : cores_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      ranks_(static_cast<std::size_t>(ranks)) {}

std::shared_ptr<Meeting> Rendezvous::meeting(const std::string& group,
                                             const std::vector<int>& members, bool pair) {
  const Lock lock(mutex_);
  std::shared_ptr<Meeting>& found = (pair ? pairs_ : groups_)[{group, members}];
  if (!found) {
    found = std::make_shared<Meeting>();
    found->group = group;
    found->members = members;
    found->posts.resize(members.size());
    found->present.resize(members.size());
  }
  return found;
}

void Rendezvous::require_running(Meeting& meeting, int member, const Call& call) {
  if (stopped_) throw_stopped(call);
  if (rank_of(meeting, member).state == State::running) return;
  throw CommError(describe(call) + ": ranks can meet only inside of World::run");
}

void Rendezvous::require_agreement(Meeting& meeting) {
  std::string text = disagreement(meeting.posts, meeting.members, meeting.group);
  if (text.empty()) return;
  stop(-1, std::make_exception_ptr(CommError(text)));
  throw CommError(text);
}

void Rendezvous::meet(Meeting& meeting, int member, Device& device, Stream& stream, Post post) {
  if (device.returns_early())
    return meet_by_events(meeting, member, device, stream, std::move(post));
  stream.synchronize();
  const int size = static_cast<int>(meeting.members.size());
  Lock lock(mutex_);
  require_running(meeting, member, post.call);
  meeting.posts[static_cast<std::size_t>(member)] = std::move(post);
  meeting.present[static_cast<std::size_t>(member)] = true;

  if (++meeting.arrived < size) {
    if (wait(lock, meeting, member, device) == Signal::done) return;
    lock.unlock();
  } else {
    require_agreement(meeting);
    const int helpers = workers_for(meeting) - 1;
    meeting.next_share = 0;
    signal_next(meeting, member, helpers, Signal::work);
    ++meeting.working;
    lock.unlock();
    wake_next(meeting, member, helpers);
  }

  try {
    work(meeting, device, stream);
  } catch (...) {
    lock.lock();
    give_up(meeting, member, device, lock);
    throw;
  }

  lock.lock();
  if (--meeting.working > 0) {
    wait(lock, meeting, member, device);
    return;
  }
  if (stopped_) {  // by another group's ranks; the members that wait here may leave now
    wake_next(meeting, member, size - 1);
    throw_stopped(meeting.posts[static_cast<std::size_t>(member)].call);
  }
  close(meeting);
  signal_next(meeting, member, size - 1, Signal::done);
  lock.unlock();
  wake_next(meeting, member, size - 1);
}

void Rendezvous::confer(Meeting& meeting, int member, Device& device, Post post,
                        const std::function<void(std::span<const Post>)>& enqueue) {
  const auto self = static_cast<std::size_t>(member);
  const int size = static_cast<int>(meeting.members.size());
  Lock lock(mutex_);
  require_running(meeting, member, post.call);
  meeting.posts[self] = std::move(post);
  meeting.present[self] = true;
  if (++meeting.arrived < size) {
    wait(lock, meeting, member, device);
  } else {
    require_agreement(meeting);
    meeting.enqueued = 0;
    signal_next(meeting, member, size - 1, Signal::work);
    ++meeting.working;
    wake_next(meeting, member, size - 1);
  }
  lock.unlock();

  try {
    enqueue(meeting.posts);
  } catch (...) {
    lock.lock();
    give_up(meeting, member, device, lock);
    throw;
  }

  lock.lock();
  --meeting.working;
  if (stopped_) {  // by a peer, or by another group's ranks: the peers may still look at this member's post
    wake_next(meeting, member, size - 1);
    await_idle(meeting, member, device, lock);
    throw_stopped(meeting.posts[self].call);
  }
  if (++meeting.enqueued < size) {
    wait(lock, meeting, member, device);
  } else {
    close(meeting);
    signal_next(meeting, member, size - 1, Signal::done);
    wake_next(meeting, member, size - 1);
  }
}

void Rendezvous::meet_by_events(Meeting& meeting, int member, Device& device, Stream& stream,
                                Post post) {
  const auto self = static_cast<std::size_t>(member);
  post.ready = device.record(stream);
  post.filled = std::make_shared<std::unique_ptr<Event>>();
  const Tensor in = post.in, out = post.out;
  std::vector<std::shared_ptr<std::unique_ptr<Event>>> filled;
  try {
    confer(meeting, member, device, std::move(post), [&](std::span<const Post> posts) {
      for (std::size_t peer = 0; peer < posts.size(); ++peer) {
        filled.push_back(posts[peer].filled);
        if (peer != self) device.wait(stream, *posts[peer].ready);
      }
      Movement(device, stream, posts).fill(member);
      *filled[self] = device.record(stream);
    });
    for (std::size_t peer = 0; peer < filled.size(); ++peer) {
      if (peer != self) device.wait(stream, **filled[peer]);
    }
  } catch (...) {
    // Work that reads peers' operands may still be on this stream, and theirs on this rank's. It ends before this rank
    // leaves, and the operands live until all have left.
    try {
      stream.synchronize();
    } catch (...) {  // what stopped the run has been noted
    }
    const Lock lock(mutex_);
    kept_.insert(kept_.end(), {in, out});
    throw;
  }
}

/// After an exception in this member's work: stops the run, and waits until nobody works on the members' operands.
void Rendezvous::give_up(Meeting& meeting, int member, Device& device, Lock& lock) {
  --meeting.working;
  stop(meeting.members[static_cast<std::size_t>(member)], std::current_exception());
  wake_next(meeting, member, static_cast<int>(meeting.members.size()) - 1);
  await_idle(meeting, member, device, lock);
}

/// Until nobody works on this member's operands; the run has been stopped.
void Rendezvous::await_idle(Meeting& meeting, int member, Device& device, Lock& lock) {
  PausedTurn pause(device);
  rank_of(meeting, member).wake.wait(lock, [&] { return meeting.working == 0; });
  pause.resume(lock);
}

/// Members that move the data. One where it is so little that waking up others takes longer.
int Rendezvous::workers_for(const Meeting& meeting) const {
  const Call& call = meeting.posts[0].call;
  const auto size = static_cast<std::int64_t>(meeting.members.size());
  if (call.pairwise()) return 1;
  const std::int64_t worth = call.payload_bytes() * size / kBytesPerWorker;
  return static_cast<int>(std::clamp<std::int64_t>(worth, 1, std::min<std::int64_t>(size, cores_)));
}

void Rendezvous::work(Meeting& meeting, Device& device, Stream& stream) {
  Movement movement(device, stream, meeting.posts);
  for (int share = meeting.next_share++; share < movement.shares(); share = meeting.next_share++) {
    movement.carry_out(share);
  }
  stream.synchronize();
}

Rendezvous::Rank& Rendezvous::rank_of(const Meeting& meeting, int member) {
  return ranks_[static_cast<std::size_t>(meeting.members[static_cast<std::size_t>(member)])];
}

/// Waits until another member says what comes next: asleep, after a moment awake. With the signal to work
/// this member counts as working; one that gets a core only after the work is done finds the signal `done` instead.
/// Where the run was stopped it leaves only when nobody works on this member's operands any more.
Rendezvous::Signal Rendezvous::wait(Lock& lock, Meeting& meeting, int member, Device& device) {
  Rank& rank = rank_of(meeting, member);
  rank.state = State::waiting;
  rank.signal = Signal::none;
  rank.waits_in = &meeting;
  rank.member = member;
  ++waiting_;
  stop_if_stuck();
  PausedTurn pause(device);
  if (!stopped_) {
    lock.unlock();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (rank.signal == Signal::none && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
    lock.lock();
  }
  rank.wake.wait(lock, [&] {
    if (rank.signal == Signal::done) return true;
    return stopped_ ? meeting.working == 0 : rank.signal == Signal::work;
  });
  if (rank.state == State::waiting) {  // nobody signalled
    rank.state = State::running;
    --waiting_;
  }
  if (rank.signal == Signal::done) {
    pause.resume(lock);
    return Signal::done;
  }
  if (stopped_) {
    pause.resume(lock);
    throw_stopped(meeting.posts[static_cast<std::size_t>(member)].call);
  }
  ++meeting.working;
  pause.resume(lock);
  return Signal::work;
}

/// Tells the `count` members after this one. From here on they count as running, whenever their threads get a core.
void Rendezvous::signal_next(Meeting& meeting, int member, int count, Signal signal) {
  for (int i = 1; i <= count; ++i) {
    Rank& rank = rank_of(meeting, (member + i) % static_cast<int>(meeting.members.size()));
    rank.signal = signal;
    if (rank.state == State::waiting) --waiting_;
    rank.state = State::running;
  }
}

/// Not under the mutex where it matters: who wakes up takes it first.
void Rendezvous::wake_next(const Meeting& meeting, int member, int count) {
  for (int i = 1; i <= count; ++i) {
    rank_of(meeting, (member + i) % static_cast<int>(meeting.members.size())).wake.notify_one();
  }
}

/// Clears the table for the next call; what was called is remembered for messages.
void Rendezvous::close(Meeting& meeting) {
  for (int i = 0; i < static_cast<int>(meeting.members.size()); ++i) {
    Post& post = meeting.posts[static_cast<std::size_t>(i)];
    rank_of(meeting, i).last_call = std::move(post.call);
    rank_of(meeting, i).called = true;
    post = {};
  }
  meeting.present.assign(meeting.members.size(), false);
  meeting.arrived = 0;
}

void Rendezvous::begin() {
  const Lock lock(mutex_);
  if (ranks_[0].state != State::idle)
    throw std::logic_error("World::run was called during a run of the same world");
  ++run_;
  for (Rank& rank : ranks_) {
    rank.state = State::running;
    rank.called = false;
  }
}

void Rendezvous::returned(int rank) {
  const Lock lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].state = State::ended;
  ++ended_;
  stop_if_stuck();
}

void Rendezvous::threw(int rank, std::exception_ptr exception) {
  const Lock lock(mutex_);
  ranks_[static_cast<std::size_t>(rank)].state = State::ended;
  ++ended_;
  stop(rank, std::move(exception));
}

void Rendezvous::finish() {
  std::exception_ptr cause;
  int cause_rank = -1;
  std::vector<Tensor> kept;
  {
    const Lock lock(mutex_);
    for (Rank& rank : ranks_) rank.state = State::idle;
    for (auto* meetings : {&groups_, &pairs_}) {
      for (auto& [key, meeting] : *meetings) {  // a stopped run leaves posts behind
        meeting->posts.assign(meeting->members.size(), {});
        meeting->present.assign(meeting->members.size(), false);
        meeting->arrived = 0;
      }
    }
    waiting_ = ended_ = 0;
    stopped_ = false;
    kept.swap(kept_);
    cause = std::exchange(cause_, nullptr);
    cause_rank = cause_rank_;
  }
  if (!cause) return;
  if (cause_rank < 0) std::rethrow_exception(cause);
  rethrow_with_rank(cause, cause_rank);
}

bool Rendezvous::stopped() const {
  const Lock lock(mutex_);
  return stopped_;
}

void Rendezvous::stop_all(std::exception_ptr exception) {
  const Lock lock(mutex_);
  stop(-1, std::move(exception));
}

/// Only the first cause counts: what ranks throw because they were stopped says nothing new.
void Rendezvous::stop(int rank, std::exception_ptr exception) {
  if (stopped_) return;
  stopped_ = true;
  stop_text_ = message_of(exception);
  cause_ = std::move(exception);
  cause_rank_ = rank;
  for (Rank& other : ranks_) other.wake.notify_one();
}

void Rendezvous::throw_stopped(const Call& call) const {
  if (cause_rank_ < 0) throw CommError(stop_text_);
  throw CommError(fmt::format("{}: stopped, because rank {} failed: {}", describe(call),
                              cause_rank_, stop_text_));
}

std::vector<int> Rendezvous::missing(const Meeting& meeting) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < meeting.members.size(); ++i) {
    if (!meeting.present[i]) ranks.push_back(meeting.members[i]);
  }
  return ranks;
}

void Rendezvous::stop_if_stuck() {
  if (stopped_ || waiting_ == 0) return;
  std::string why;
  if (waiting_ + ended_ == static_cast<int>(ranks_.size()))
    why = "every live rank waits and no group is complete";
  if (ended_ > 0) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].state != State::waiting) continue;
      for (const int other : missing(*ranks_[i].waits_in)) {
        if (ranks_[static_cast<std::size_t>(other)].state != State::ended) continue;
        why = fmt::format("rank {} has returned while rank {} waits for it", other, i);
      }
    }
  }
  if (why.empty()) return;
  stop(-1, std::make_exception_ptr(CommError(fmt::format(
               "deadlock: {}: {}. Every rank must issue the same collectives in the same order.",
               why, everybody()))));
}

std::string Rendezvous::everybody() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    std::string line = fmt::format("rank {} ", i);
    if (rank.state == State::waiting) {
      const Meeting& meeting = *rank.waits_in;
      const std::vector<int> others = missing(meeting);
      const Call& call = meeting.posts[static_cast<std::size_t>(rank.member)].call;
      line += fmt::format("waits in {} over {} for {}", describe(call), meeting.group,
                          others.empty() ? "its peers to finish" : ranks_text(others));
    } else {
      line += rank.state == State::ended ? "has returned" : "is running";
      line += rank.called ? ", its last call was " + describe(rank.last_call)
                          : " and has called nothing";
    }
    lines.push_back(std::move(line));
  }
  return fmt::format("{}", fmt::join(lines, "; "));
}

}  // namespace shardcheck
