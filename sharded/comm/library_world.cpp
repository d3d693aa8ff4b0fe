// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "model/error.hpp"
#include "sharded/comm/dense_group.hpp"
#include "sharded/comm/member_communicator.hpp"
#include "sharded/comm/rank_threads.hpp"
#include "sharded/comm/rendezvous.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {
namespace {

constexpr std::chrono::milliseconds kWatchEvery{50};

/// The groups of a run and the thread that watches them: NCCL's kernels wait for peers on the device, so somebody must
/// end them when a rank has failed.
class Groups {
 public:
  Groups(CollectiveLibrary& library, Rendezvous& rendezvous)
      : library_(library), rendezvous_(rendezvous) {}

  /// Joins this member; returns when all have. The group lives until the run has ended on all ranks.
  DenseGroup& join(const Meeting& meeting, int member, Stream& stream) {
    Joining joining;
    joining.size = static_cast<int>(meeting.members.size());
    joining.member = member;
    joining.name = fmt::format("group {}, rank {}", meeting.group,
                               meeting.members[static_cast<std::size_t>(member)]);
    joining.stopped = [this] { return rendezvous_.stopped(); };
    {
      const std::lock_guard lock(mutex_);
      std::string& id = ids_[&meeting];
      if (id.empty()) id = library_.new_id();
      joining.id = id;
    }
    std::unique_ptr<DenseGroup> group = library_.join(stream, joining);
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    return *groups_.back();
  }

  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    std::condition_variable_any ended;
    while (!ended.wait_for(lock, stop, kWatchEvery, [&] { return stop.stop_requested(); })) {
      for (const auto& group : groups_) {
        if (const std::string failure = group->failure(); !failure.empty()) {
          rendezvous_.stop_all(std::make_exception_ptr(CommError(failure)));
        }
      }
      if (!rendezvous_.stopped()) continue;
      for (const auto& group : groups_) group->abort();
    }
  }

  /// No member's end may go while the device still works for a peer. Precondition: all ranks have ended; watched.
  void drain() {
    for (const auto& group : groups_) {  // only watch() looks at the list now
      try {
        group->drain();
        if (const std::string failure = group->failure(); !failure.empty())
          throw CommError(failure);
      } catch (...) {
        rendezvous_.stop_all(std::current_exception());
      }
    }
  }
  /// Precondition: nobody watches.
  void clear() {
    groups_.clear();
    ids_.clear();
  }

 private:
  CollectiveLibrary& library_;
  Rendezvous& rendezvous_;
  std::mutex mutex_;
  std::map<const Meeting*, std::string> ids_;
  std::vector<std::unique_ptr<DenseGroup>> groups_;
};

struct Shared {
  Shared(int ranks, std::shared_ptr<CollectiveLibrary> of)
      : rendezvous(ranks), library(std::move(of)) {}
  Rendezvous rendezvous;
  std::shared_ptr<CollectiveLibrary> library;
  Groups groups{*library, rendezvous};
};

class LibraryCommunicator final : public MemberCommunicator {
 public:
  LibraryCommunicator(GroupView group, Device& device, Ledger& ledger, std::shared_ptr<Shared> shared)
      : MemberCommunicator(std::move(group), device, ledger), shared_(std::move(shared)) {}

 private:
  void exchange(Stream& stream, Post post) override {
    Rendezvous& rendezvous = shared_->rendezvous;
    if (const std::uint64_t run = rendezvous.run(); run != run_) {
      run_ = run;
      calls_ = 0;
      joined_.clear();
    }
    if (!post.call.pairwise()) post.call.sequence = calls_++;  // messages concern two members alone
    const int peer = post.call.peer;
    if (!post.call.pairwise())
      return meet(*rendezvous.meeting(group().name, group().members, false), rank(), stream, post);
    if (peer < 0) require_sound(post.call);  // nobody to meet
    const int self = group().world_rank(rank());
    const bool sends = post.call.kind == CollectiveKind::send;
    const auto pair = rendezvous.meeting(group().name, {sends ? self : peer, sends ? peer : self},
                                         true);
    meet(*pair, sends ? 0 : 1, stream, post);
  }

  void meet(Meeting& meeting, int member, Stream& stream, const Post& post) {
    shared_->rendezvous.confer(meeting, member, device(), post, [&](std::span<const Post>) {
      DenseGroup*& joined = joined_[&meeting];
      if (joined == nullptr) joined = &shared_->groups.join(meeting, member, stream);
      const NamedRange named = device().range(name(post.call.kind));
      move_densely(*joined, device(), stream, static_cast<int>(meeting.members.size()), member, post);
    });
  }

  std::shared_ptr<Shared> shared_;
  std::map<const Meeting*, DenseGroup*> joined_;
  std::uint64_t run_ = 0, calls_ = 0;
};

class LibraryWorld final : public World {
 public:
  LibraryWorld(const Mesh& mesh, std::shared_ptr<CollectiveLibrary> library)
      : mesh_(mesh), shared_(std::make_shared<Shared>(mesh.ranks(), std::move(library))) {
    if (const std::string why = shared_->library->refusal(mesh.ranks()); !why.empty())
      throw InputError(why);
  }

  const Mesh& mesh() const override { return mesh_; }

  std::unique_ptr<Communicator> group(int rank, const std::vector<int>& axes, Device& device,
                                      Ledger& ledger) override {
    GroupView view = group_view(mesh_, rank, axes);
    if (view.size() == 1) return make_single_communicator(std::move(view), device, ledger);
    if (device.kind() != shared_->library->device_kind()) {
      throw InputError(
          fmt::format("this communicator moves data of device {} only, not of {}; use threads",
                      shared_->library->device_kind(), device.kind()));
    }
    return std::make_unique<LibraryCommunicator>(std::move(view), device, ledger, shared_);
  }

  void run(const std::function<void(int rank)>& body) override {
    Rendezvous& rendezvous = shared_->rendezvous;
    rendezvous.begin();
    {
      const std::jthread watcher([this](const std::stop_token& stop) { shared_->groups.watch(stop); });
      run_rank_threads(rendezvous, mesh_.ranks(), body);
      shared_->groups.drain();
    }
    shared_->groups.clear();
    rendezvous.finish();
  }

  std::vector<std::string> notes() const override { return {shared_->library->note()}; }

 private:
  Mesh mesh_;
  std::shared_ptr<Shared> shared_;  // communicators may outlive the world
};

}  // namespace

std::unique_ptr<World> make_library_world(const Mesh& mesh, std::shared_ptr<CollectiveLibrary> library) {
  return std::make_unique<LibraryWorld>(mesh, std::move(library));
}

}  // namespace shardcheck
