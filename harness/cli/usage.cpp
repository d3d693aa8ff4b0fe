// SPDX-License-Identifier: Apache-2.0
#include "harness/cli/usage.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "model/modules.hpp"

namespace shardcheck::cli {
namespace {

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  // The innermost command that was chosen: `shardcheck`, `shardcheck verify`, `shardcheck plan import`.
  const CLI::App* command = &app;
  std::string words = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    words += " " + command->get_name();
  }
  const std::vector<std::string> unknown = app.remaining(true);
  const std::vector<std::string> names = command_names(*command);
  if (!names.empty()) {
    if (unknown.empty() || unknown[0][0] == '-') {
      return fmt::format("{}: name a command, {}; {} --help says what they do",
                         unknown.empty() ? "nothing to do" : unknown[0], fmt::join(names, ", "), words);
    }
    return fmt::format("unknown command \"{}\"; did you mean \"{}\"? The commands are {}",
                       unknown[0], nearest_name(unknown[0], names), fmt::join(names, ", "));
  }
  const std::string help = words + " --help";
  if (!unknown.empty() && unknown[0][0] == '-') {
    return fmt::format("unknown option \"{}\"; did you mean \"{}\"? ({})", unknown[0],
                       nearest_name(unknown[0], option_names(*command)), help);
  }
  if (!unknown.empty())
    return fmt::format("\"{}\" was not expected here; see {}", unknown[0], help);
  std::string what = error.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  return fmt::format("{}; see {}", what, help);
}

}  // namespace shardcheck::cli
