// SPDX-License-Identifier: Apache-2.0
// Where each key and value of a JSON text stands, so that a message can name the line. Private to .cpp files.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardcheck {

/// Keys from the outermost inwards; an element of a list is its number in decimal.
using JsonPath = std::vector<std::string>;

class JsonPlaces {
 public:
  /// Walks `text`, which parse_json(text, origin, true) has taken. Both must outlive this.
  JsonPlaces(std::string_view text, const std::string& origin);

  /// Byte where the key of an object's member begins, and where a value begins.
  std::size_t key(const JsonPath& path) const;
  std::size_t value(const JsonPath& path) const;

  /// Throws InputError with the line and column of a byte, of a key, of a value.
  [[noreturn]] void fail_at(std::size_t byte, const std::string& message) const;
  [[noreturn]] void fail_key(const JsonPath& path, const std::string& message) const;
  [[noreturn]] void fail_value(const JsonPath& path, const std::string& message) const;
  /// "line 12" of a byte.
  std::string line(std::size_t byte) const;

 private:
  struct Place {
    std::size_t key = 0, value = 0;
  };
  void walk(JsonPath& path);
  void skip_space();
  std::string take_string();

  std::string_view text_;
  const std::string& origin_;
  std::size_t at_ = 0;
  std::map<JsonPath, Place> places_;
};

}  // namespace shardcheck
