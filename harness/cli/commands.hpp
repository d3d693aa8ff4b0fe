// SPDX-License-Identifier: Apache-2.0
// One function per command, one file each. A new command is one file, one line here and one in main.cpp.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace shardcheck::cli {

/// Adds a command to the program; its callback sets `exit_code` (0 passed, 1 a check failed) or throws.
void add_verify(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_cost(CLI::App& app, int& exit_code);
void add_lint(CLI::App& app, int& exit_code);
void add_prove(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_faults(CLI::App& app, int& exit_code);
void add_info(CLI::App& app, int& exit_code);

}  // namespace shardcheck::cli
