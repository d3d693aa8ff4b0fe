// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace shardcheck::cli {

/// What is wrong with a command line, in one sentence, with the nearest word that it could have been.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace shardcheck::cli
