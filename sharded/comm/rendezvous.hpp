// SPDX-License-Identifier: Apache-2.0
// Where the threads of one run meet: they wait for each other, find out when nobody can go on, and stop together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sharded/comm/agreement.hpp"

namespace shardcheck {

/// One group's table: what its members brought so far. Guarded by the Rendezvous' mutex, except that the posts don't
/// change while anybody works on them.
struct Meeting {
  std::string group;         // "tp"
  std::vector<int> members;  // ranks of the world; of a pair the sender, then the receiver
  std::vector<Post> posts;   // by member
  std::vector<bool> present;
  int arrived = 0;
  int working = 0;                  // members that are reading and writing peers' tensors
  std::atomic<int> next_share = 0;  // of the movement
  int enqueued = 0;  // members that have done their part of what they conferred about
};

/// Counts who runs, waits and has ended, so that a deadlock is known at the moment it arises, without a timeout: when
/// every live rank waits, or one waits for a rank that has ended. One mutex guards everything; every rank has its own
/// condition variable, so that only those wake up who can go on.
class Rendezvous {
 public:
  explicit Rendezvous(int ranks);

  /// The table of these members; one per axes and members, made on first use. `pair`: for sends of the first member to
  /// the second.
  std::shared_ptr<Meeting> meeting(const std::string& group, const std::vector<int>& members,
                                   bool pair);

  /// Waits for all members, checks that their calls agree, and returns when the data has moved. The last to arrive
  /// moves it, with as many others as there is work and are cores for: the rest sleep until it is done. Before posting
  /// the stream is synchronised, so that peers may read in and write out; so it is after the work.
  /// On a device that returns early the host waits for calls, never for data: each member's stream waits for all
  /// members' streams up to their calls, fills that member's out, and then waits until the peers' streams have filled
  /// theirs, so that what it does next to `in` comes after their reads.
  /// Throws CommError with the call sites if the calls differ, if the ranks can't meet, or if another rank failed.
  void meet(Meeting& meeting, int member, Device& device, Stream& stream, Post post);
  /// Waits for all members, checks that their calls agree, lets each call `enqueue` with the posts on its own thread,
  /// and returns when all have: nothing that a member enqueued waits for one that never will. Throws as meet does.
  void confer(Meeting& meeting, int member, Device& device, Post post,
              const std::function<void(std::span<const Post>)>& enqueue);

  /// True once the run has to end: who waits for peers outside of here must stop too.
  bool stopped() const;
  /// Ends the run for a reason that is no rank's own, unless it has been stopped already.
  void stop_all(std::exception_ptr exception);

  // The life of a run: begin, then each rank's end by one of two ways, then finish, which rethrows what stopped it.
  void begin();
  void returned(int rank);
  void threw(int rank, std::exception_ptr exception);
  void finish();
  /// Which run this is; sequence numbers start anew with each.
  std::uint64_t run() const { return run_; }

 private:
  enum class State { idle, running, waiting, ended };
  enum class Signal { none, work, done };
  struct Rank {
    State state = State::idle;
    std::atomic<Signal> signal = Signal::none;
    const Meeting* waits_in = nullptr;
    int member = 0;       // in waits_in
    bool called = false;  // last_call is one of this run
    Call last_call;       // completed
    std::condition_variable wake;
  };
  using Lock = std::unique_lock<std::mutex>;

  Rank& rank_of(const Meeting& meeting, int member);
  void meet_by_events(Meeting& meeting, int member, Device& device, Stream& stream, Post post);
  void require_running(Meeting& meeting, int member, const Call& call);
  void require_agreement(Meeting& meeting);
  Signal wait(Lock& lock, Meeting& meeting, int member, Device& device);
  void give_up(Meeting& meeting, int member, Device& device, Lock& lock);
  void await_idle(Meeting& meeting, int member, Device& device, Lock& lock);
  int workers_for(const Meeting& meeting) const;
  static void work(Meeting& meeting, Device& device, Stream& stream);
  void signal_next(Meeting& meeting, int member, int count, Signal signal);
  void wake_next(const Meeting& meeting, int member, int count);
  void close(Meeting& meeting);
  void stop(int rank, std::exception_ptr exception);
  [[noreturn]] void throw_stopped(const Call& call) const;
  std::vector<int> missing(const Meeting& meeting) const;
  void stop_if_stuck();
  std::string everybody() const;

  const int cores_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<Meeting>> groups_, pairs_;
  std::atomic<std::uint64_t> run_ = 0;
  int waiting_ = 0, ended_ = 0;
  bool stopped_ = false;
  std::exception_ptr cause_;  // what stopped the run
  int cause_rank_ = -1;       // who threw it; -1 if the ranks as a whole are to blame
  std::string stop_text_;
  std::vector<Tensor> kept_;  // operands of ranks that left a meeting early
};

}  // namespace shardcheck
