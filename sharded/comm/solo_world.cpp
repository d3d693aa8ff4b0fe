// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/member_communicator.hpp"
#include "sharded/comm/rank_error.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {
namespace {

class SoloCommunicator final : public MemberCommunicator {
 public:
  using MemberCommunicator::MemberCommunicator;

 private:
  void exchange(Stream&, Post post) override { require_sound(post.call); }
};

class SoloWorld final : public World {
 public:
  explicit SoloWorld(const Mesh& mesh) : mesh_(mesh) {}

  const Mesh& mesh() const override { return mesh_; }

  std::unique_ptr<Communicator> group(int rank, const std::vector<int>& axes, Device& device,
                                      Ledger& ledger) override {
    GroupView view = group_view(mesh_, rank, axes);
    if (view.size() == 1) return make_single_communicator(std::move(view), device, ledger);
    return std::make_unique<SoloCommunicator>(std::move(view), device, ledger);
  }

  void run(const std::function<void(int rank)>& body) override {
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      try {
        body(rank);
      } catch (...) {
        rethrow_with_rank(std::current_exception(), rank);
      }
    }
  }

 private:
  Mesh mesh_;
};

}  // namespace

std::unique_ptr<World> make_solo_world(const Mesh& mesh) {
  return std::make_unique<SoloWorld>(mesh);
}

}  // namespace shardcheck
