// SPDX-License-Identifier: Apache-2.0
#include "tests/bundle/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <deque>
#include <fstream>
#include <thread>

namespace shardcheck::bundle {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Ended run_process(const std::vector<std::string>& command, const std::filesystem::path& log,
                  double limit) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  const auto start = Clock::now();
  pid_t child = 0;
  const int failure = posix_spawn(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failure != 0) return {127, false, 0.0};

  Ended ended;
  for (int status = 0;;) {
    const pid_t gone = waitpid(child, &status, ended.timed_out ? 0 : WNOHANG);
    if (gone == child) {
      ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      break;
    }
    if (seconds_since(start) > limit) {
      ended.timed_out = true;
      kill(child, SIGKILL);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  ended.seconds = seconds_since(start);
  return ended;
}

std::string tail(const std::filesystem::path& file, int lines) {
  std::ifstream stream(file);
  std::deque<std::string> last;
  for (std::string line; std::getline(stream, line);) {
    last.push_back(line);
    if (last.size() > static_cast<std::size_t>(std::max(lines, 0))) last.pop_front();
  }
  std::string text;
  for (const std::string& line : last) text += text.empty() ? line : "\n" + line;
  return text;
}

}  // namespace shardcheck::bundle
