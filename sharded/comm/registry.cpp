// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/error.hpp"
#include "sharded/comm/worlds.hpp"

namespace shardcheck {

std::unique_ptr<World> WorldRegistry::make(const std::string& kind, const Mesh& mesh) const {
  const auto found = factories_.find(kind);
  if (found == factories_.end()) {
    throw InputError(fmt::format("'{}' is no kind of communicator; there are {}", kind,
                                 fmt::join(kinds(), ", ")));
  }
  return found->second(mesh);
}

std::vector<std::string> WorldRegistry::kinds() const {
  std::vector<std::string> names;
  for (const auto& [kind, factory] : factories_) names.push_back(kind);
  return names;
}

WorldRegistry builtin_worlds() {
  WorldRegistry worlds;
  worlds.add("solo", make_solo_world);
  worlds.add("threads", make_thread_world);
  return worlds;
}

}  // namespace shardcheck
