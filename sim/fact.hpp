// SPDX-License-Identifier: Apache-2.0
// A number that somebody stated: what it is, in which unit, for one direction or both, who says so and how they know.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace shardcheck::sim {

/// How a number is known: from a data sheet, from a run, or believed for want of either.
enum class Provenance { spec, measured, assumed };
std::string_view name(Provenance kind);

/// A bandwidth of one direction or the sum of both; a latency one way or there and back.
enum class Direction { per_direction, both };
std::string_view name(Direction direction);

/// The fact as it was stated, for reports.
struct Constant {
  std::string name;  // "bandwidth", "peak.bf16", "ring.start"
  std::variant<double, bool, std::string> value;
  std::string unit;  // "GB/s"; empty for words and flags
  std::optional<Direction> direction;
  Provenance kind = Provenance::assumed;
  std::string source;
};

/// The same fact, ready to compute with: in base units, per direction.
template <class T>
struct Fact {
  T value{};
  Constant stated;
};

}  // namespace shardcheck::sim
