// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/shared_module.hpp"
#include "model/error.hpp"
#include "sharded/comm/launch.hpp"
#include "sharded/comm/library_module.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {
namespace {

const LibraryModule* nccl_module(std::string& why) {
  return open_module<LibraryModule>("nccl", "shardcheck_library_module", kLibraryModuleVersion, why);
}

const WireModule* mpi_module(std::string& why) {
  return open_module<WireModule>("mpi", "shardcheck_wire_module", kWireModuleVersion, why);
}

std::shared_ptr<CollectiveLibrary> require_nccl() {
  std::string why;
  std::shared_ptr<CollectiveLibrary> library = open_nccl(why);
  if (library == nullptr)
    throw InputError(fmt::format("communicator 'nccl' is not available: {}", why));
  return library;
}

/// Joins the job when the first world asks.
class Job {
 public:
  const std::shared_ptr<Wire>& wire() {
    if (wire_ != nullptr) return wire_;
    const Launch launch = detect_launch();
    if (!launch.several()) {
      throw InputError(
          "communicator 'mpi' needs a process for each rank: start the program with mpirun -n "
          "RANKS");
    }
    std::string why;
    const WireModule* const module = mpi_module(why);
    if (module == nullptr)
      throw InputError(fmt::format("communicator 'mpi' is not available: {}", why));
    wire_ = module->open();
    return wire_;
  }

 private:
  std::shared_ptr<Wire> wire_;
};

std::string describe_mpi() {
  std::string why;
  const WireModule* const module = mpi_module(why);
  if (module == nullptr) return "none: " + why;
  const Launch launch = detect_launch();
  return fmt::format("{}; {}", module->describe(),
                     launch.several()
                         ? fmt::format("process {} of {}", launch.process, launch.processes)
                         : "not started by mpirun");
}

}  // namespace

std::shared_ptr<CollectiveLibrary> open_nccl(std::string& why) {
  const LibraryModule* const module = nccl_module(why);
  return module == nullptr ? nullptr : module->open(why);
}

std::string describe_nccl() {
  std::string why;
  const LibraryModule* const module = nccl_module(why);
  return module == nullptr ? "none: " + why : module->describe();
}

const WorldKind& WorldRegistry::entry(const std::string& kind) const {
  const auto found = entries_.find(kind);
  if (found == entries_.end()) {
    throw InputError(fmt::format("'{}' is no kind of communicator; there are {}", kind,
                                 fmt::join(kinds(), ", ")));
  }
  return found->second;
}

std::unique_ptr<World> WorldRegistry::make(const std::string& kind, const Mesh& mesh) const {
  return entry(kind).make(mesh);
}

std::string WorldRegistry::describe(const std::string& kind) const {
  return entry(kind).describe();
}

std::vector<std::string> WorldRegistry::kinds() const {
  std::vector<std::string> names;
  for (const auto& [kind, entry] : entries_) names.push_back(kind);
  return names;
}

WorldRegistry builtin_worlds() {
  WorldRegistry worlds;
  worlds.add("solo",
             {make_solo_world, [] { return std::string("one rank at a time, nothing moves"); }});
  worlds.add("threads", {make_thread_world, [] {
                           return std::string("a thread for each rank, data moved by the device");
                         }});
  worlds.add("nccl", {[](const Mesh& mesh) { return make_library_world(mesh, require_nccl()); },
                      describe_nccl});
  const auto job = std::make_shared<Job>();
  worlds.add("mpi", {[job](const Mesh& mesh) { return make_process_world(mesh, job->wire()); },
                     describe_mpi});
  worlds.add("mpi+nccl", {[job](const Mesh& mesh) {
                            return make_process_world(mesh, job->wire(), require_nccl());
                          },
                          [] { return describe_mpi() + "; " + describe_nccl(); }});
  return worlds;
}

std::string default_world(const std::string& device_kind, int devices, int ranks) {
  std::string why;
  const Launch launch = detect_launch();
  const bool cuda = device_kind == "cuda";
  if (launch.several()) {
    return cuda && devices >= launch.local_processes && open_nccl(why) != nullptr ? "mpi+nccl" : "mpi";
  }
  if (!cuda || ranks < 2 || devices < ranks) return "threads";
  const std::shared_ptr<CollectiveLibrary> library = open_nccl(why);
  return library != nullptr && library->refusal(ranks).empty() ? "nccl" : "threads";
}

}  // namespace shardcheck
