// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "sharded/comm/member_communicator.hpp"
#include "sharded/comm/rank_threads.hpp"
#include "sharded/comm/rendezvous.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {
namespace {

class ThreadCommunicator final : public MemberCommunicator {
 public:
  ThreadCommunicator(GroupView group, Device& device, Ledger& ledger,
                     std::shared_ptr<Rendezvous> rendezvous)
      : MemberCommunicator(std::move(group), device, ledger),
        rendezvous_(std::move(rendezvous)),
        meeting_(rendezvous_->meeting(this->group().name, this->group().members, false)) {}

 private:
  void exchange(Stream& stream, Post post) override {
    if (const std::uint64_t run = rendezvous_->run(); run != run_) {
      run_ = run;
      calls_ = 0;
    }
    if (!post.call.pairwise()) post.call.sequence = calls_++;  // messages concern two members alone
    const int peer = post.call.peer;
    if (!post.call.pairwise())
      return rendezvous_->meet(*meeting_, rank(), device(), stream, std::move(post));
    if (peer < 0) require_sound(post.call);  // nobody to meet
    const int self = group().world_rank(rank());
    const bool sends = post.call.kind == CollectiveKind::send;
    const auto pair = rendezvous_->meeting(group().name, {sends ? self : peer, sends ? peer : self},
                                           true);
    rendezvous_->meet(*pair, sends ? 0 : 1, device(), stream, std::move(post));
  }

  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<Meeting> meeting_;
  std::uint64_t run_ = 0, calls_ = 0;
};

class ThreadWorld final : public World {
 public:
  explicit ThreadWorld(const Mesh& mesh)
      : mesh_(mesh), rendezvous_(std::make_shared<Rendezvous>(mesh.ranks())) {}

  const Mesh& mesh() const override { return mesh_; }

  std::unique_ptr<Communicator> group(int rank, const std::vector<int>& axes, Device& device,
                                      Ledger& ledger) override {
    GroupView view = group_view(mesh_, rank, axes);
    if (view.size() == 1) return make_single_communicator(std::move(view), device, ledger);
    return std::make_unique<ThreadCommunicator>(std::move(view), device, ledger, rendezvous_);
  }

  void run(const std::function<void(int rank)>& body) override {
    rendezvous_->begin();
    run_rank_threads(*rendezvous_, mesh_.ranks(), body);
    rendezvous_->finish();
  }

 private:
  Mesh mesh_;
  std::shared_ptr<Rendezvous> rendezvous_;  // communicators may outlive the world
};

}  // namespace

std::unique_ptr<World> make_thread_world(const Mesh& mesh) {
  return std::make_unique<ThreadWorld>(mesh);
}

}  // namespace shardcheck
