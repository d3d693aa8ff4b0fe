// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "harness/cli/commands.hpp"
#include "harness/verify.hpp"
#include "model/error.hpp"
#include "model/shipped.hpp"
#include "sharded/placement_rule_names.hpp"

namespace shardcheck::cli {
namespace {

/// Not to have one is no reason to say nothing about the rest.
std::string cache_text() {
  try {
    return cache_directory().string();
  } catch (const InputError& error) {
    return std::string("none: ") + error.what();
  }
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "info", "What this program has: devices, ops, gates, and the files that come with it.");
  command->footer("");
  command->callback([&exit_code] {
    const VerifyParts parts = builtin_parts();
    for (const std::string& kind : parts.devices.kinds()) {
      fmt::print("device {:<7} {}\n", kind, parts.devices.describe(kind));
    }
    for (const std::string& kind : parts.worlds.kinds()) {
      fmt::print("ranks {:<8} {}\n", kind, parts.worlds.describe(kind));
    }
    fmt::print("ops            {}\n", fmt::join(parts.ops.names(), ", "));
    for (const Gate gate : kGates) fmt::print("gate {:<9} {}\n", name(gate), description(gate));
    for (const PlacementRule& rule : kPlacementRules)
      fmt::print("rule {}: {} ({})\n", rule.name, rule.sentence, name(rule.severity));
    fmt::print("files          {}\n", share_directory().string());
    fmt::print("cache          {}\n", cache_text());
    for (const char* folder : {"models", "configs", "plans", "links", "gpus"}) {
      fmt::print("{:<14} {}\n", folder, fmt::join(shipped_names(folder), ", "));
    }
    exit_code = 0;
  });
}

}  // namespace shardcheck::cli
