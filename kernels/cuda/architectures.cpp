// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/architectures.hpp"

#include <charconv>

namespace shardcheck::gpu {
namespace {

bool one_runs_on(int capability, std::string_view architecture) {
  int number = 0;
  const char* const end = architecture.data() + architecture.size();
  const auto [rest, error] = std::from_chars(architecture.data(), end, number);
  if (error != std::errc{}) return true;
  const std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (suffix.starts_with('a') || suffix.starts_with('f')) return capability == number;
  const bool machine_code = suffix != "-virtual", ptx = suffix != "-real";
  return (machine_code && capability / 10 == number / 10 && capability >= number) ||
         (ptx && capability >= number);
}

}  // namespace

bool runs_on(int capability, std::string_view architectures) {
  while (!architectures.empty()) {
    const std::size_t end = architectures.find(',');
    if (one_runs_on(capability, architectures.substr(0, end))) return true;
    architectures = end == std::string_view::npos ? std::string_view{} : architectures.substr(end + 1);
  }
  return false;
}

}  // namespace shardcheck::gpu
