// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/launch.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace shardcheck {
namespace {

/// A number in the environment; `otherwise` if it isn't there.
int number(const char* variable, int otherwise) {
  const char* const set = std::getenv(variable);
  if (set == nullptr) return otherwise;
  const std::string_view text = set;
  int value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

Launch detect_launch() {
  Launch launch;
  launch.processes = number("OMPI_COMM_WORLD_SIZE", number("PMI_SIZE", 1));
  launch.process = number("OMPI_COMM_WORLD_RANK", number("PMI_RANK", 0));
  launch.local_processes = number("OMPI_COMM_WORLD_LOCAL_SIZE",
                                  number("MPI_LOCALNRANKS", launch.processes));
  launch.local_process = number("OMPI_COMM_WORLD_LOCAL_RANK",
                                number("MPI_LOCALRANKID", launch.process));
  return launch;
}

}  // namespace shardcheck
