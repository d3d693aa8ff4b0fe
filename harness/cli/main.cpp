// SPDX-License-Identifier: Apache-2.0
// Exit codes: 0 all passed, 1 a check failed, 2 bad usage or bad input, 3 a fault of the program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "harness/cli/commands.hpp"
#include "harness/cli/cpu_check.hpp"
#include "harness/cli/usage.hpp"
#include "model/error.hpp"

int main(int argc, char** argv) {
  const std::string cpu = shardcheck::cpu_problem(shardcheck::kCpuFeaturesNeeded,
                                                  shardcheck::cpu_features_present());
  if (!cpu.empty()) {
    std::fprintf(stderr, "shardcheck: %s\n", cpu.c_str());
    return 2;
  }
  int exit_code = 0;
  CLI::App app(
      "Checks that a transformer cut over several ranks is still the same model, and says what its "
      "communication costs.",
      "shardcheck");
  app.require_subcommand(1);
  app.set_version_flag("--version", SHARDCHECK_VERSION);
  app.footer(
      "Start with   shardcheck verify tiny-llama --tp 1,2,3\n"
      "then         shardcheck verify --help\n"
      "Exit codes   0 all passed, 1 a check failed, 2 bad usage or bad input, 3 a fault of the "
      "program");
  shardcheck::cli::add_verify(app, exit_code);
  shardcheck::cli::add_compare(app, exit_code);
  shardcheck::cli::add_cost(app, exit_code);
  shardcheck::cli::add_info(app, exit_code);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    fmt::print(stderr, "shardcheck: {}\n", shardcheck::cli::usage_message(app, error));
    return 2;
  } catch (const shardcheck::InputError& error) {
    fmt::print(stderr, "shardcheck: {}\n", error.what());
    return 2;
  } catch (const shardcheck::PlacementError& error) {
    fmt::print(stderr, "shardcheck: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shardcheck: a fault of the program: {}\n", error.what());
    return 3;
  }
}
