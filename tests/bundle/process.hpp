// SPDX-License-Identifier: Apache-2.0
// A program run with a time limit.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shardcheck::bundle {

struct Ended {
  int code = 0;  // exit code; 128 + signal where a signal ended it
  bool timed_out = false;
  double seconds = 0.0;
};

/// Runs `command`, its output appended to `log`, and kills it after `limit` seconds. A program that can't be started ends
/// with code 127.
Ended run_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                  double limit);

/// The last `lines` lines of a file; empty if there is none.
std::string tail(const std::filesystem::path& file, int lines);

}  // namespace shardcheck::bundle
