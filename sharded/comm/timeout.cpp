// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/timeout.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "model/error.hpp"

namespace shardcheck {

std::chrono::milliseconds comm_timeout() {
  const char* const set = std::getenv("SHARDCHECK_TIMEOUT");
  if (set == nullptr) return std::chrono::seconds(300);
  const std::string_view text = set;
  double seconds = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  constexpr double kMost = 1e6;
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds > 0.0 && seconds <= kMost)) {
    throw InputError(fmt::format(
        "SHARDCHECK_TIMEOUT is \"{}\"; it must be seconds above 0, at most {}", text, kMost));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000.0) + 1);
}

}  // namespace shardcheck
