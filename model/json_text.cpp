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

/// Over white space and comments.
std::size_t after_space(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const std::string_view two = text.substr(at, 2);
    if (two == "//" || two == "/*") {
      const std::size_t close = text.find(two == "//" ? "\n" : "*/", at + 2);
      at = close == std::string_view::npos ? text.size() : close + (two == "//" ? 1 : 2);
    } else if (text.find_first_of(" \t\r\n", at) == at) {
      ++at;
    } else {
      break;
    }
  }
  return at;
}

/// Where the key that comes after `before` others begins. The text is valid up to there.
std::size_t place_of_key(std::string_view text, std::size_t before) {
  for (std::size_t at = after_space(text, 0); at < text.size(); at = after_space(text, at)) {
    const std::size_t begin = at++;
    if (text[begin] != '"') continue;
    while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    ++at;
    const std::size_t next = after_space(text, at);
    if (next < text.size() && text[next] == ':' && before-- == 0) return begin;
  }
  return text.size();
}

}  // namespace

json parse_json(std::string_view text, const std::string& origin, bool comments) {
  std::vector<std::set<std::string>> open_objects;
  std::size_t keys = 0;
  const auto note_keys = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event != json::parse_event_t::key) return true;
    if (!open_objects.back().insert(parsed.get<std::string>()).second) {
      const Position at = position_of(text, place_of_key(text, keys));
      throw InputError(fmt::format("{}:{}:{}: the key {} stands twice in one object; remove one of them",
                                   origin, at.line, at.column, quoted(parsed)));
    }
    ++keys;
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
