// SPDX-License-Identifier: Apache-2.0
// To be started by mpirun: ranks RANKS SCENARIO. Prints one line by the process that judges; exit 0 where the
// scenario went as it should.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "kernels/cpu/cpu_device.hpp"
#include "model/error.hpp"
#include "tests/comm/all_collectives.hpp"

namespace shardcheck::testing {
namespace {

void sum(Rank& rank, const std::string& site, std::int64_t rows = 2) {
  rank.over()->all_reduce(rank.stream(), rank.put(varied(DType::f32, rows, 8, 1)), {},
                          rank.empty(DType::f32, rows, 8), at(site));
}

/// What each process does as its rank; throws what it should throw.
void act(Rank& rank, const std::string& scenario) {
  if (scenario == "disagree") sum(rank, "a", 2 + rank.index);
  sum(rank, "a");
  const bool last = rank.index == rank.over()->size() - 1;
  if (scenario == "fails" && last) throw InputError("now");
  if (scenario == "killed" && last) ::raise(SIGKILL);
  if (scenario == "hangs" && last) ::sleep(60);
  if (scenario == "returns" && last) return;
  sum(rank, "b");
}

int compare_with_threads(World& world, int size) {
  Results expected = no_results(size), results = no_results(size);
  Ranks threads(size);
  threads.run([&](Rank& rank) { all_collectives(rank, size, DType::bf16, expected); });
  const auto device = make_cpu_device();
  Ledger ledger;
  int wrong = 0;
  world.run([&](int index) {
    Rank rank(index, world, *device, ledger);
    all_collectives(rank, size, DType::bf16, results);
    // More than a message that MPI sends at once.
    const Tensor in = rank.put(varied(DType::f64, 700, 900, static_cast<std::uint64_t>(index)));
    const Tensor out = rank.empty(DType::f64, 700, 900);
    rank.over()->all_reduce(rank.stream(), in, {}, out, at("large"));
    const auto self = static_cast<std::size_t>(index);
    for (std::size_t i = 0; i < results.size(); ++i)
      wrong += !results[i][self].bitwise_equal(expected[i][self]);
    ledger.pop_back();
    wrong += ledger != threads.ledgers[self];
  });
  for (const std::string& word : world.gather(std::to_string(wrong))) wrong += word != "0";
  if (world.judges()) fmt::print("bits: {}\n", wrong == 0 ? "equal" : "different");
  return wrong == 0 ? 0 : 1;
}

int run(int size, const std::string& scenario) {
  const WorldRegistry worlds = builtin_worlds();
  const auto world = worlds.make("mpi", Mesh{{{"tp", size}}});
  if (scenario == "bits") return compare_with_threads(*world, size);
  const auto device = make_cpu_device();
  Ledger ledger;
  try {
    world->run([&](int index) {
      Rank rank(index, *world, *device, ledger);
      act(rank, scenario);
    });
  } catch (const std::exception& error) {
    if (world->judges()) fmt::print("stopped: {}\n", error.what());
    std::fflush(stdout);
    return 0;
  }
  return 1;
}

}  // namespace
}  // namespace shardcheck::testing

int main(int count, char** words) {
  if (count != 3) return 2;
  return shardcheck::testing::run(std::stoi(words[1]), words[2]);
}
