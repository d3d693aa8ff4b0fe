// SPDX-License-Identifier: Apache-2.0
#include "harness/import/json_places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sharded/plan_text.hpp"

namespace shardcheck {
namespace {

constexpr std::size_t kMostNested = 32;

}  // namespace

JsonPlaces::JsonPlaces(std::string_view text, const std::string& origin)
    : text_(text), origin_(origin) {
  if (text_.substr(0, 3) == "\xEF\xBB\xBF")
    at_ = 3;  // a byte order mark, which the parser skips too
  JsonPath path;
  walk(path);
}

std::size_t JsonPlaces::key(const JsonPath& path) const { return places_.at(path).key; }
std::size_t JsonPlaces::value(const JsonPath& path) const { return places_.at(path).value; }

void JsonPlaces::fail_at(std::size_t byte, const std::string& message) const {
  PlanText(text_, origin_).fail_at(byte, message);
}
void JsonPlaces::fail_key(const JsonPath& path, const std::string& message) const {
  fail_at(key(path), message);
}
void JsonPlaces::fail_value(const JsonPath& path, const std::string& message) const {
  fail_at(value(path), message);
}

std::string JsonPlaces::line(std::size_t byte) const {
  const std::string_view before = text_.substr(0, std::min(byte, text_.size()));
  return fmt::format("line {}", std::count(before.begin(), before.end(), '\n') + 1);
}

/// At a value: notes where it is, and where its members are.
void JsonPlaces::walk(JsonPath& path) {
  skip_space();
  if (path.size() > kMostNested)
    fail_at(at_, fmt::format("nested more than {} deep: this is no plan", kMostNested));
  places_[path].value = at_;
  const char first = at_ < text_.size() ? text_[at_] : '\0';
  if (first == '"') {
    take_string();
  } else if (first == '{' || first == '[') {
    const char close = first == '{' ? '}' : ']';
    ++at_;
    skip_space();
    for (std::size_t number = 0; at_ < text_.size() && text_[at_] != close; ++number) {
      const std::size_t begin = at_;
      path.push_back(first == '{' ? take_string() : std::to_string(number));
      places_[path].key = begin;
      if (first == '{') {
        skip_space();
        ++at_;  // the colon
      }
      walk(path);
      path.pop_back();
      skip_space();
      if (at_ < text_.size() && text_[at_] == ',') ++at_;
      skip_space();
    }
    ++at_;
  } else {
    at_ = std::min(text_.find_first_of(",]} \t\r\n/", at_), text_.size());
  }
}

/// Over white space and comments.
void JsonPlaces::skip_space() {
  while (at_ < text_.size()) {
    if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (text_.substr(at_, 2) == "/*") {
      const std::size_t close = text_.find("*/", at_ + 2);
      at_ = close == std::string_view::npos ? text_.size() : close + 2;
    } else if (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n') {
      ++at_;
    } else {
      return;
    }
  }
}

/// A quoted string; its text without the quotes and escapes.
std::string JsonPlaces::take_string() {
  const std::size_t begin = at_;
  for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
    if (text_[at_] == '\\') ++at_;
  }
  at_ = std::min(at_ + 1, text_.size());
  return nlohmann::json::parse(text_.substr(begin, at_ - begin)).get<std::string>();
}

}  // namespace shardcheck
