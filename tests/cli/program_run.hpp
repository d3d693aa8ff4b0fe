// SPDX-License-Identifier: Apache-2.0
// The built program, run as a user runs it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/model/temp_folder.hpp"

namespace shardcheck::testing {

struct ProgramResult {
  int exit_code = -1;
  std::string out, err;
  bool crashed = false;  // ended by a signal
};

inline std::string read_all(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Runs `shardcheck ARGUMENTS` through the shell, in the source folder.
inline ProgramResult run_program_with(const std::string& arguments) {
  const TempFolder folder;
  const std::string err = (folder.path() / "err").string();
  const std::string command = std::string("cd '") + SHARDCHECK_SOURCE_DIR + "' && '" +
                              SHARDCHECK_PROGRAM + "' " + arguments + " 2>'" + err + "'";
  ProgramResult result;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen: " + command);
  std::array<char, 65536> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.out.append(buffer.data(), n);
  const int status = pclose(pipe);
  // The shell reports a signal of its child as 128 + its number.
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.crashed = !WIFEXITED(status) || result.exit_code > 128;
  result.err = read_all(err);
  return result;
}

/// Bad input: exit 2, nothing on stdout, one line on stderr that begins with the program's name. Returns that line.
inline std::string refused(const std::string& arguments) {
  const ProgramResult result = run_program_with(arguments);
  EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.out << result.err;
  EXPECT_EQ(result.out, "") << arguments;
  EXPECT_EQ(result.err.rfind("shardcheck: ", 0), 0u) << arguments << "\n" << result.err;
  EXPECT_FALSE(result.err.empty());
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << "one line: " << result.err;
  return result.err;
}

}  // namespace shardcheck::testing
