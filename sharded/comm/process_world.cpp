// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "model/error.hpp"
#include "sharded/comm/call_parcel.hpp"
#include "sharded/comm/dense_group.hpp"
#include "sharded/comm/member_communicator.hpp"
#include "sharded/comm/movement.hpp"
#include "sharded/comm/process_link.hpp"
#include "sharded/comm/timeout.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {
namespace {

/// The members of one call: of a group, or of a pair the sender, then the receiver.
struct Table {
  std::string name;
  std::vector<int> members;
  int self = 0;  // index in members
};

struct Shared {
  Shared(std::shared_ptr<Wire> wire, int ranks, std::shared_ptr<CollectiveLibrary> of)
      : link(std::move(wire), ranks, comm_timeout()), library(std::move(of)) {}
  ProcessLink link;
  std::shared_ptr<CollectiveLibrary> library;  // null: data travels with the calls
  std::deque<std::unique_ptr<DenseGroup>> groups;
};

class ProcessCommunicator final : public MemberCommunicator {
 public:
  ProcessCommunicator(GroupView group, Device& device, Ledger& ledger, std::shared_ptr<Shared> shared)
      : MemberCommunicator(std::move(group), device, ledger), shared_(std::move(shared)) {}

 private:
  void exchange(Stream& stream, Post post) override {
    ProcessLink& link = shared_->link;
    if (!link.running())
      throw CommError(describe(post.call) + ": ranks can meet only inside of World::run");
    if (link.run() != run_) {
      run_ = link.run();
      calls_ = 0;
      joined_.clear();
    }
    if (!post.call.pairwise()) post.call.sequence = calls_++;  // messages concern two members alone
    if (post.call.pairwise() && post.call.peer < 0) require_sound(post.call);  // nobody to meet
    const Table table = table_of(post.call);
    std::deque<ReceivedCall> received;  // by member; they stay where they are
    meet(table, stream, post, received);
    if (shared_->library != nullptr) return move_by_library(table, stream, post);

    std::vector<Post> posts;
    for (std::size_t i = 0; i < received.size(); ++i) {
      if (static_cast<int>(i) == table.self) {
        posts.push_back(post);
        continue;
      }
      posts.push_back({received[i].call, {}, {}});
      if (!received[i].in) continue;
      const HostTensor& host = *received[i].in;
      posts.back().in = device().allocate(stream, host.dtype(), host.rows(), host.cols());
      device().upload(stream, host, posts.back().in);
    }
    Movement(device(), stream, posts).fill(table.self);
  }

  Table table_of(const Call& call) const {
    if (!call.pairwise()) return {group().name, group().members, rank()};
    const int self = group().world_rank(rank());
    const bool sends = call.kind == CollectiveKind::send;
    const std::vector<int> members{sends ? self : call.peer, sends ? call.peer : self};
    return {fmt::format("{}, {} to {}", group().name, members[0], members[1]), members, sends ? 0 : 1};
  }

  /// Sends this rank's call to the other members, with its data where they need it, and checks theirs.
  void meet(const Table& table, Stream& stream, const Post& post, std::deque<ReceivedCall>& received) {
    HostTensor host;
    const bool carries = shared_->library == nullptr && post.in && post.call.defect.empty() &&
                         needed(post.call);
    if (carries) host = device().to_host(stream, post.in);
    std::vector<int> peers;
    for (std::size_t i = 0; i < table.members.size(); ++i) {
      if (static_cast<int>(i) != table.self) peers.push_back(table.members[i]);
    }
    const auto waiting = [&] {
      return fmt::format("{} over {} for rank{} {}", describe(post.call), group().name,
                         peers.size() == 1 ? "" : "s", fmt::join(peers, ", "));
    };
    const std::vector<std::string> calls = shared_->link.exchange(
        peers, pack_call(post.call, table.name, carries ? &host : nullptr), waiting);
    std::size_t next = 0;
    std::vector<Post> posts;
    for (std::size_t i = 0; i < table.members.size(); ++i) {
      ReceivedCall& theirs = received.emplace_back();
      if (static_cast<int>(i) == table.self) {
        posts.push_back(post);
        continue;
      }
      unpack_call(calls[next++], theirs);
      if (theirs.group != table.name) {
        shared_->link.misfit(
            fmt::format("deadlock: rank {} waits in {}, while rank {} waits in {} over {}. Every "
                        "rank must issue the same collectives "
                        "in the same order.",
                        table.members[static_cast<std::size_t>(table.self)], waiting(),
                        table.members[i], describe(theirs.call), theirs.group));
      }
      posts.push_back({theirs.call, {}, {}});
    }
    const std::string text = disagreement(posts, table.members, group().name);
    if (!text.empty()) shared_->link.misfit(text);
  }

  /// True if the peers need this rank's in.
  bool needed(const Call& call) const {
    return call.kind != CollectiveKind::broadcast || call.peer_member == rank();
  }

  void move_by_library(const Table& table, Stream& stream, const Post& post) {
    const int size = static_cast<int>(table.members.size());
    DenseGroup*& joined = joined_[table.name];
    if (joined == nullptr) {
      shared_->groups.push_back(shared_->library->join(stream, joining(table, post.call)));
      joined = shared_->groups.back().get();
    }
    move_densely(*joined, device(), stream, size, table.self, post);
  }

  /// The first member names the group.
  Joining joining(const Table& table, const Call& call) {
    Joining joining;
    joining.size = static_cast<int>(table.members.size());
    joining.member = table.self;
    joining.name = fmt::format("group {}, rank {}", table.name,
                               table.members[static_cast<std::size_t>(table.self)]);
    joining.stopped = [this] { return shared_->link.stopped(); };
    std::vector<int> peers = table.members;
    peers.erase(peers.begin() + table.self);
    const std::string own = table.self == 0 ? shared_->library->new_id() : std::string();
    const std::vector<std::string> ids = shared_->link.exchange(peers, own,
                                                                [&] { return describe(call); });
    joining.id = table.self == 0 ? own : ids.front();
    return joining;
  }

  std::shared_ptr<Shared> shared_;
  std::map<std::string, DenseGroup*> joined_;
  std::uint64_t run_ = 0, calls_ = 0;
};

class ProcessWorld final : public World {
 public:
  ProcessWorld(const Mesh& mesh, const std::shared_ptr<Wire>& wire,
               std::shared_ptr<CollectiveLibrary> library)
      : mesh_(mesh),
        process_(wire->process()),
        shared_(std::make_shared<Shared>(wire, mesh.ranks(), std::move(library))) {
    if (mesh.ranks() <= wire->processes()) return;
    throw InputError(
        fmt::format("{} has {} ranks, but the job has {} processes; start it with mpirun -n {}",
                    to_string(mesh), mesh.ranks(), wire->processes(), mesh.ranks()));
  }

  const Mesh& mesh() const override { return mesh_; }
  bool runs(int rank) const override { return rank == process_ && rank < mesh_.ranks(); }
  bool judges() const override { return process_ == 0; }

  std::unique_ptr<Communicator> group(int rank, const std::vector<int>& axes, Device& device,
                                      Ledger& ledger) override {
    GroupView view = group_view(mesh_, rank, axes);
    if (view.size() == 1) return make_single_communicator(std::move(view), device, ledger);
    if (shared_->library != nullptr && device.kind() != shared_->library->device_kind()) {
      throw InputError(
          fmt::format("this communicator moves data of device {} only, not of {}; use mpi",
                      shared_->library->device_kind(), device.kind()));
    }
    return std::make_unique<ProcessCommunicator>(std::move(view), device, ledger, shared_);
  }

  /// Processes without a rank of this mesh have nothing to do.
  void run(const std::function<void(int rank)>& body) override {
    if (process_ >= mesh_.ranks()) return;
    ProcessLink& link = shared_->link;
    link.begin(to_string(mesh_));
    std::exception_ptr exception;
    try {
      body(process_);
      for (const auto& group : shared_->groups) {
        group->drain();
        if (const std::string failure = group->failure(); !failure.empty())
          throw CommError(failure);
      }
    } catch (...) {
      exception = std::current_exception();
      for (const auto& group : shared_->groups) group->abort();
    }
    const auto clear = [this] { shared_->groups.clear(); };
    try {
      link.end(exception);
    } catch (...) {
      clear();
      throw;
    }
    clear();  // only now: until all have drained, a peer's work may need this end
  }

  std::vector<std::string> gather(std::string bytes) override {
    if (process_ >= mesh_.ranks()) return {};
    return shared_->link.gather(std::move(bytes));
  }

  std::vector<std::string> notes() const override {
    if (shared_->library == nullptr) return {};
    return {shared_->library->note()};
  }

 private:
  Mesh mesh_;
  int process_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<World> make_process_world(const Mesh& mesh, const std::shared_ptr<Wire>& wire,
                                          std::shared_ptr<CollectiveLibrary> library) {
  return std::make_unique<ProcessWorld>(mesh, wire, std::move(library));
}

}  // namespace shardcheck
