// SPDX-License-Identifier: Apache-2.0
// The wire between processes, played by threads: process worlds are tested without starting processes.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "model/error.hpp"
#include "sharded/comm/wire.hpp"

namespace shardcheck::testing {

class LocalJob {
 public:
  explicit LocalJob(int processes) : processes_(processes) {}

  void put(int from, int to, int channel, std::string bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to, channel}].push_back(std::move(bytes));
  }
  std::optional<std::string> take(int from, int to, int channel) {
    const std::lock_guard lock(mutex_);
    if (!aborted_.empty()) throw CommError(aborted_);
    std::deque<std::string>& box = boxes_[{from, to, channel}];
    if (box.empty()) return std::nullopt;
    std::string bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }
  void abort(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (aborted_.empty()) aborted_ = message;
  }
  /// What was sent and never received.
  std::size_t left() const {
    std::size_t count = 0;
    for (const auto& [key, box] : boxes_) count += box.size();
    return count;
  }
  int processes() const { return processes_; }

 private:
  const int processes_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::deque<std::string>> boxes_;
  std::string aborted_;
};

class LocalWire final : public Wire {
 public:
  LocalWire(LocalJob& job, int process) : job_(job), process_(process) {}

  int process() const override { return process_; }
  int processes() const override { return job_.processes(); }
  void send(int to, int channel, std::string bytes) override {
    job_.put(process_, to, channel, std::move(bytes));
  }
  std::optional<std::string> receive(int from, int channel) override {
    return job_.take(from, process_, channel);
  }
  bool idle() override { return true; }
  [[noreturn]] void abort(const std::string& message) override {
    job_.abort("aborted: " + message);
    throw CommError("aborted: " + message);
  }

 private:
  LocalJob& job_;
  int process_;
};

}  // namespace shardcheck::testing
