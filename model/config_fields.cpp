// SPDX-License-Identifier: Apache-2.0
#include "model/config_fields.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "model/error.hpp"
#include "model/json_text.hpp"

namespace shardcheck {

ConfigFields::ConfigFields(const nlohmann::json& object, std::string origin, std::string prefix)
    : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {}

const nlohmann::json* ConfigFields::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigFields::fail(std::string_view key, std::string_view rule, std::string_view remedy) const {
  const auto it = object_.find(key);
  const std::string value = it == object_.end() ? "absent" : quoted(*it);
  throw InputError(
      fmt::format("{}: \"{}{}\" is {}; {}; {}", origin_, prefix_, key, value, rule, remedy));
}

void ConfigFields::fail_missing(std::string_view key, std::string_view rule) const {
  throw InputError(
      fmt::format("{}: \"{}{}\" is missing; {}; add it to the file", origin_, prefix_, key, rule));
}

std::int64_t ConfigFields::integer(std::string_view key, IntRange range,
                                   std::optional<std::int64_t> fallback) const {
  const std::string rule = fmt::format("it must be an integer from {} to {}", range.min, range.max);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail_missing(key, rule);
    return *fallback;
  }
  // An unsigned value above the int64 range compares as itself, never wrapped.
  const bool fits = value->is_number_unsigned()
                        ? range.max >= 0 &&
                              value->get<std::uint64_t>() <= static_cast<std::uint64_t>(range.max) &&
                              (range.min <= 0 ||
                               value->get<std::uint64_t>() >= static_cast<std::uint64_t>(range.min))
                        : value->is_number_integer() && value->get<std::int64_t>() >= range.min &&
                              value->get<std::int64_t>() <= range.max;
  if (!fits) fail(key, rule, "correct it in the file");
  return value->get<std::int64_t>();
}

double ConfigFields::number(std::string_view key, double above, double most,
                            std::optional<double> fallback) const {
  const std::string rule = fmt::format("it must be a number above {} and at most {}", above, most);
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail_missing(key, rule);
    return *fallback;
  }
  if (!value->is_number()) fail(key, rule, "correct it in the file");
  const double number = value->get<double>();
  if (!(number > above && number <= most)) fail(key, rule, "correct it in the file");
  return number;
}

bool ConfigFields::boolean(std::string_view key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail(key, "it must be true or false", "correct it in the file");
  return value->get<bool>();
}

std::string ConfigFields::text(std::string_view key, std::optional<std::string> fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) {
    if (!fallback) fail_missing(key, "it must be a string");
    return *fallback;
  }
  if (!value->is_string()) fail(key, "it must be a string", "correct it in the file");
  return value->get<std::string>();
}

}  // namespace shardcheck
