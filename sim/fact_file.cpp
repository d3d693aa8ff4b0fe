// SPDX-License-Identifier: Apache-2.0
#include "sim/fact_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "model/error.hpp"
#include "model/modules.hpp"
#include "model/shipped.hpp"

namespace shardcheck::sim {

using Json = nlohmann::json;

std::string_view name(Provenance kind) {
  switch (kind) {
    case Provenance::spec:
      return "spec";
    case Provenance::measured:
      return "measured";
    case Provenance::assumed:
      return "assumed";
  }
  return "?";
}

std::string_view name(Direction direction) {
  return direction == Direction::per_direction ? "per_direction" : "both";
}

namespace {

struct Unit {
  std::string_view name;
  double factor;  // to the base unit
};

constexpr std::array kRates{
    Unit{"GB/s", 1e9},       Unit{"TB/s", 1e12},      Unit{"MB/s", 1e6},       Unit{"B/s", 1.0},
    Unit{"GiB/s", 0x1.0p30}, Unit{"Gb/s", 1e9 / 8.0}, Unit{"Tb/s", 1e12 / 8.0}};
constexpr std::array kTimes{Unit{"us", 1e-6}, Unit{"ns", 1e-9}, Unit{"ms", 1e-3}, Unit{"s", 1.0}};
constexpr std::array kSizes{Unit{"GB", 1e9}, Unit{"GiB", 0x1.0p30}, Unit{"MiB", 0x1.0p20},
                            Unit{"TB", 1e12}, Unit{"B", 1.0}};
constexpr std::array kPeaks{Unit{"TFLOP/s", 1e12}, Unit{"GFLOP/s", 1e9}, Unit{"PFLOP/s", 1e15}};
constexpr std::array kRatios{Unit{"1", 1.0}};
constexpr std::array kGpus{Unit{"GPUs", 1.0}};

enum class Directed { required, forbidden };

// A key that is given twice would silently win or lose: the parser keeps the last one.
Json parse_strictly(const std::string& text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw InputError(
          fmt::format("{}: the key \"{}\" is given twice in one object; keep one of them", file,
                      value.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(text, check, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: not valid JSON ({}); correct it there", file, error.what()));
  }
}

}  // namespace

struct FactFile::Node {
  std::string file;
  std::string prefix;  // "peak." inside the object "peak"
  Json json;
  std::set<std::string> read{};

  [[noreturn]] void refuse(std::string_view key, std::string_view rule) const {
    throw InputError(fmt::format("{}: \"{}{}\" {}", file, prefix, key, rule));
  }

  const Json& at(std::string_view key) {
    read.emplace(key);
    const auto found = json.find(std::string(key));
    if (found == json.end())
      refuse(key, "is missing; add it (the shipped files of this kind show the form)");
    return *found;
  }

  static std::string shown(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // The common part of a fact; `value` is filled by the caller.
  Constant open(std::string_view key, std::span<const Unit> units, Directed directed, double* factor) {
    const Json& fact = at(key);
    if (!fact.is_object()) {
      refuse(key, fmt::format("is {}; a fact is an object {{\"value\", \"unit\", \"direction\", "
                              "\"kind\", \"source\"}}",
                              shown(fact)));
    }
    for (const auto& [field, unused] : fact.items()) {
      static_cast<void>(unused);
      constexpr std::array<std::string_view, 5> fields{"value", "unit", "direction", "kind",
                                                       "source"};
      if (std::find(fields.begin(), fields.end(), field) == fields.end()) {
        refuse(key, fmt::format("has an unknown field \"{}\"; a fact has {}", field,
                                fmt::join(fields, ", ")));
      }
    }
    if (!fact.contains("value")) refuse(key, "has no \"value\"; add it");
    const auto word = [&](const char* field) -> std::string {
      if (!fact.contains(field)) return {};
      if (!fact[field].is_string())
        refuse(key, fmt::format(R"(has "{}": {}; write a string)", field, shown(fact[field])));
      return fact[field].get<std::string>();
    };

    Constant constant;
    constant.name = prefix + std::string(key);
    constant.unit = word("unit");
    if (units.empty()) {
      if (fact.contains("unit")) refuse(key, "has a \"unit\", but is no number; remove the unit");
    } else {
      const auto unit = std::find_if(units.begin(), units.end(),
                                     [&](const Unit& u) { return u.name == constant.unit; });
      if (unit == units.end()) {
        std::vector<std::string_view> names;
        for (const Unit& u : units) names.push_back(u.name);
        refuse(key, fmt::format("has the unit \"{}\"; write one of {}", constant.unit,
                                fmt::join(names, ", ")));
      }
      *factor = unit->factor;
    }

    const std::string direction = word("direction");
    if (directed == Directed::forbidden) {
      if (fact.contains("direction"))
        refuse(key, "has a \"direction\", but has none by nature; remove it");
    } else if (direction == "per_direction") {
      constant.direction = Direction::per_direction;
    } else if (direction == "both") {
      constant.direction = Direction::both;
      *factor /= 2.0;
    } else {
      refuse(
          key,
          fmt::format(
              "has the direction \"{}\"; write \"per_direction\", or \"both\" for the sum of two "
              "directions or a round trip",
              direction));
    }

    const std::string kind = word("kind");
    if (kind == "spec")
      constant.kind = Provenance::spec;
    else if (kind == "measured")
      constant.kind = Provenance::measured;
    else if (kind == "assumed")
      constant.kind = Provenance::assumed;
    else
      refuse(key,
             fmt::format("has the kind \"{}\"; write \"spec\", \"measured\" or \"assumed\"", kind));

    constant.source = word("source");
    if (constant.source.empty())
      refuse(key, "has no \"source\"; say who states it, or why it is assumed");
    return constant;
  }

  // A number in base units, per direction. Sets the stated value.
  double number(std::string_view key, std::span<const Unit> units, Directed directed,
                Constant& constant) {
    double factor = 1.0;
    constant = open(key, units, directed, &factor);
    const Json& value = json[std::string(key)]["value"];
    if (!value.is_number())
      refuse(key, fmt::format("has the value {}; write a number", shown(value)));
    constant.value = value.get<double>();
    const double result = value.get<double>() * factor;
    if (!std::isfinite(result))
      refuse(key, fmt::format("has the value {}, which is not finite", shown(value)));
    return result;
  }

  template <class T>
  Fact<T> positive(std::string_view key, std::span<const Unit> units, Directed directed) {
    Fact<T> fact;
    const double value = number(key, units, directed, fact.stated);
    if (!(value > 0.0))
      refuse(key, fmt::format("is {}; it must be above 0", std::get<double>(fact.stated.value)));
    fact.value = T(value);
    return fact;
  }
};

FactFile::FactFile(std::shared_ptr<Node> node) : node_(std::move(node)) {}

FactFile::FactFile(const std::filesystem::path& file, std::string_view schema)
    : node_(std::make_shared<Node>(
          Node{file.string(), "", parse_strictly(read_text(file), file.string())})) {
  if (!node_->json.is_object()) {
    throw InputError(fmt::format("{}: the file must hold one JSON object; it holds {}", node_->file,
                                 node_->json.type_name()));
  }
  const std::string met = text("schema");
  if (met != schema)
    refuse("schema", fmt::format("is \"{}\"; this kind of file has \"{}\"", met, schema));
}

bool FactFile::has(std::string_view key) const { return node_->json.contains(std::string(key)); }

std::string FactFile::text(std::string_view key) {
  const Json& value = node_->at(key);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    refuse(key, fmt::format("is {}; write a string that isn't empty", Node::shown(value)));
  }
  return value.get<std::string>();
}

FactFile FactFile::object(std::string_view key) {
  const Json& value = node_->at(key);
  if (!value.is_object()) refuse(key, fmt::format("is {}; write an object", Node::shown(value)));
  return FactFile(
      std::make_shared<Node>(Node{node_->file, node_->prefix + std::string(key) + ".", value}));
}

Fact<BytesPerSecond> FactFile::bandwidth(std::string_view key) {
  return node_->positive<BytesPerSecond>(key, kRates, Directed::required);
}
Fact<BytesPerSecond> FactFile::memory_bandwidth(std::string_view key) {
  return node_->positive<BytesPerSecond>(key, kRates, Directed::forbidden);
}
Fact<FlopsPerSecond> FactFile::compute(std::string_view key) {
  return node_->positive<FlopsPerSecond>(key, kPeaks, Directed::forbidden);
}
Fact<Bytes> FactFile::size(std::string_view key) {
  return node_->positive<Bytes>(key, kSizes, Directed::forbidden);
}

Fact<Seconds> FactFile::latency(std::string_view key) {
  Fact<Seconds> fact;
  fact.value = Seconds(node_->number(key, kTimes, Directed::required, fact.stated));
  if (!(fact.value >= Seconds(0.0))) refuse(key, "is negative; a latency is at least 0");
  return fact;
}

Fact<double> FactFile::fraction(std::string_view key) {
  Fact<double> fact = node_->positive<double>(key, kRatios, Directed::forbidden);
  if (!(fact.value <= 1.0)) {
    refuse(key, fmt::format("is {}; it must be at most 1. A \"busbw\" above the wire's rate comes "
                            "from a switch that "
                            "reduces: convert it, busbw / (2 (P-1)/P) x (1 + 1/P) / bandwidth, "
                            "into in_switch_fraction",
                            fact.value));
  }
  return fact;
}

Fact<int> FactFile::count(std::string_view key, int at_least) {
  Fact<int> fact;
  const double value = node_->number(key, kGpus, Directed::forbidden, fact.stated);
  if (!(value >= at_least && value <= 1e6 && value == std::floor(value))) {
    refuse(key, fmt::format("is {}; write a whole number of at least {}", value, at_least));
  }
  fact.value = static_cast<int>(value);
  return fact;
}

Fact<bool> FactFile::flag(std::string_view key) {
  Fact<bool> fact;
  fact.stated = node_->open(key, {}, Directed::forbidden, nullptr);
  const Json& value = node_->json[std::string(key)]["value"];
  if (!value.is_boolean())
    refuse(key, fmt::format("has the value {}; write true or false", Node::shown(value)));
  fact.stated.value = fact.value = value.get<bool>();
  return fact;
}

Fact<std::string> FactFile::word(std::string_view key, std::span<const std::string_view> allowed) {
  Fact<std::string> fact;
  fact.stated = node_->open(key, {}, Directed::forbidden, nullptr);
  const Json& value = node_->json[std::string(key)]["value"];
  if (value.is_string()) fact.value = value.get<std::string>();
  if (!value.is_string() || std::find(allowed.begin(), allowed.end(), fact.value) == allowed.end()) {
    refuse(key, fmt::format("has the value {}; write one of {}", Node::shown(value),
                            fmt::join(allowed, ", ")));
  }
  fact.stated.value = fact.value;
  return fact;
}

void FactFile::finish() const {
  for (const auto& [key, unused] : node_->json.items()) {
    static_cast<void>(unused);
    if (node_->read.contains(key)) continue;
    const std::vector<std::string> known(node_->read.begin(), node_->read.end());
    refuse(key, fmt::format("is no key of this kind of file, or has no meaning beside the others "
                            "(nearest: \"{}\"); "
                            "the keys are {}",
                            nearest_name(key, known), fmt::join(known, ", ")));
  }
}

void FactFile::refuse(std::string_view key, std::string_view rule) const {
  node_->refuse(key, rule);
}

}  // namespace shardcheck::sim
