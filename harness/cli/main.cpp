// SPDX-License-Identifier: Apache-2.0
// Exit codes: 0 all passed, 1 a check failed, 2 bad usage or bad input, 3 a fault of the program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>

#include "harness/cli/commands.hpp"
#include "harness/cli/cpu_check.hpp"
#include "harness/cli/usage.hpp"
#include "model/error.hpp"
#include "sharded/comm/launch.hpp"

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
  shardcheck::cli::add_lint(app, exit_code);
  shardcheck::cli::add_prove(app, exit_code);
  shardcheck::cli::add_plan(app, exit_code);
  shardcheck::cli::add_faults(app, exit_code);
  shardcheck::cli::add_info(app, exit_code);
  const auto complain = [](const std::string& message) {
    // Under mpirun all processes have the same to say. The first one says it, and its exit ends the job; another speaks
    // only where the first has nothing to complain of.
    if (shardcheck::detect_launch().process > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    fmt::print(stderr, "shardcheck: {}\n", message);
  };
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    complain(shardcheck::cli::usage_message(app, error));
    return 2;
  } catch (const shardcheck::InputError& error) {
    complain(error.what());
    return 2;
  } catch (const shardcheck::PlacementError& error) {
    complain(error.what());
    return 1;
  } catch (const std::exception& error) {
    complain(fmt::format("a fault of the program: {}", error.what()));
    return 3;
  }
}
