// SPDX-License-Identifier: Apache-2.0
#include "model/json_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "model/error.hpp"

namespace shardcheck {
namespace {

using nlohmann::json;

struct Position {
  std::size_t line, column;
};

Position position_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
  const std::size_t start = before.rfind('\n');
  return {line, start == std::string_view::npos ? before.size() + 1 : before.size() - start};
}

}  // namespace

json parse_json(std::string_view text, const std::string& origin, bool comments) {
  std::vector<std::set<std::string>> open_objects;
  const auto note_keys = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key &&
        !open_objects.back().insert(parsed.get<std::string>()).second) {
      throw InputError(fmt::format("{}: the key {} stands twice in one object; remove one of them",
                                   origin, quoted(parsed)));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), note_keys, true, comments);
  } catch (const json::parse_error& error) {
    // The library counts from 1 to the last byte that it read.
    const Position at = position_of(text, error.byte == 0 ? 0 : error.byte - 1);
    throw InputError(fmt::format("{}:{}:{}: this is not valid JSON here; correct the file", origin,
                                 at.line, at.column));
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: a value is out of the range that JSON readers take ({})",
                                 origin, error.what()));
  }
}

std::string quoted(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace shardcheck
