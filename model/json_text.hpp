// SPDX-License-Identifier: Apache-2.0
// Reading JSON that somebody else wrote: one message with line and column, and no key twice in one object.
// Private to .cpp files, because it includes the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardcheck {

/// Parses `text`. Throws InputError naming `origin`, line and column where it is malformed, or the key that an
/// object holds twice (parsers differ in which one they take).
nlohmann::json parse_json(std::string_view text, const std::string& origin, bool comments = false);

/// The value as it would be written, cut to 60 characters: for messages.
std::string quoted(const nlohmann::json& value);

}  // namespace shardcheck
