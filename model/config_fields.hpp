// SPDX-License-Identifier: Apache-2.0
// Typed, range-checked reading of one JSON object of a config. Private to .cpp files.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace shardcheck {

/// Inclusive bounds of an integer field.
struct IntRange {
  std::int64_t min, max;
};

/// A config object with the names needed for messages. A key whose value is null counts as absent.
class ConfigFields {
 public:
  /// `prefix` is put before keys in messages: "rope_scaling." for that nested object.
  ConfigFields(const nlohmann::json& object, std::string origin, std::string prefix = "");

  const nlohmann::json& object() const { return object_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const nlohmann::json* find(std::string_view key) const;  // null if absent or JSON null

  std::int64_t integer(std::string_view key, IntRange range,
                       std::optional<std::int64_t> fallback = {}) const;
  /// A finite number > `above` and <= `most`.
  double number(std::string_view key, double above, double most,
                std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = {}) const;

  /// Throws InputError: `ORIGIN: "KEY" is VALUE; RULE; REMEDY`.
  [[noreturn]] void fail(std::string_view key, std::string_view rule, std::string_view remedy) const;

 private:
  [[noreturn]] void fail_missing(std::string_view key, std::string_view rule) const;

  const nlohmann::json& object_;
  std::string origin_;
  std::string prefix_;
};

}  // namespace shardcheck
