// SPDX-License-Identifier: Apache-2.0
// Reads a JSON file of facts, strictly: each fact is {value, unit, direction, kind, source}, and a key that nobody
// asked for is refused. Used by link.cpp and gpu.cpp.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sim/fact.hpp"
#include "sim/units.hpp"

namespace shardcheck::sim {

/// One JSON object of such a file. Every reader throws InputError naming the file, the key, the rule, the value met and
/// the remedy. Bandwidths and latencies need a direction ("both" is halved: the sum of two directions, a round trip);
/// other facts must not have one, except rates and sizes of a GPU's own memory.
class FactFile {
 public:
  /// Opens the file; its "schema" must be `schema`.
  FactFile(const std::filesystem::path& file, std::string_view schema);

  bool has(std::string_view key) const;
  /// A plain string that isn't empty.
  std::string text(std::string_view key);
  FactFile object(std::string_view key);

  Fact<BytesPerSecond> bandwidth(std::string_view key);  // > 0, with direction
  Fact<Seconds> latency(std::string_view key);           // >= 0, with direction
  Fact<BytesPerSecond> memory_bandwidth(std::string_view key);  // > 0, no direction: reads and writes together
  Fact<FlopsPerSecond> compute(std::string_view key);   // > 0
  Fact<Bytes> size(std::string_view key);               // > 0
  Fact<double> fraction(std::string_view key);          // in (0, 1]
  Fact<int> count(std::string_view key, int at_least);  // a whole number
  Fact<bool> flag(std::string_view key);
  Fact<std::string> word(std::string_view key, std::span<const std::string_view> allowed);

  /// Refuses keys that weren't read, with the nearest one that exists.
  void finish() const;
  /// Throws InputError "<file>: <key> <rule>" about a key of this object.
  [[noreturn]] void refuse(std::string_view key, std::string_view rule) const;

 private:
  struct Node;
  explicit FactFile(std::shared_ptr<Node> node);
  std::shared_ptr<Node> node_;
};

}  // namespace shardcheck::sim
