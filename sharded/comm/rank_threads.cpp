// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/rank_threads.hpp"

#include <system_error>
#include <thread>
#include <vector>

namespace shardcheck {
namespace {

void run_rank(Rendezvous& rendezvous, int rank, const std::function<void(int)>& body) {
  try {
    body(rank);
  } catch (...) {
    rendezvous.threw(rank, std::current_exception());
    return;
  }
  rendezvous.returned(rank);
}

}  // namespace

void run_rank_threads(Rendezvous& rendezvous, int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::jthread> threads;  // joined at the end
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&rendezvous, rank, &body] { run_rank(rendezvous, rank, body); });
    } catch (const std::system_error&) {  // no more threads: the ones that run already must not wait for it
      rendezvous.threw(rank, std::current_exception());
    }
  }
}

}  // namespace shardcheck
