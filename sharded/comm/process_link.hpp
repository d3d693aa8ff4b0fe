// SPDX-License-Identifier: Apache-2.0
// The conversation between the processes of a run: who waits for whom, with a deadline, and how they stop together.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sharded/comm/wire.hpp"

namespace shardcheck {

/// One process's side; its rank is its process number. What one process says to another comes in this order: it begins
/// a run, makes its calls, has ended; then its results. A failure is told on a channel of its own too, so that a rank
/// that waits for a third hears of it at once. Where nothing comes in time the whole job is ended.
class ProcessLink {
 public:
  /// What this rank waits in, for messages.
  using Waiting = std::function<std::string()>;

  ProcessLink(std::shared_ptr<Wire> wire, int ranks, std::chrono::milliseconds timeout)
      : wire_(std::move(wire)), ranks_(ranks), timeout_(timeout) {}

  int rank() const { return wire_->process(); }
  /// Which run this is, from 1; 0 before the first.
  std::uint64_t run() const { return run_; }
  bool running() const { return running_; }

  /// Waits for all ranks, however long they take to come here. Throws CommError if they begin something else than
  /// `what`.
  void begin(const std::string& what);
  /// Returns when the peers' calls are here, by peer, and this rank's has left. Throws CommError if a peer has ended or
  /// another rank failed.
  std::vector<std::string> exchange(const std::vector<int>& peers, const std::string& call,
                                    const Waiting& waiting);
  /// The ranks don't fit together: stops the run. Throws CommError.
  [[noreturn]] void misfit(const std::string& text);
  /// True if another rank is known to have failed.
  bool stopped();
  /// Tells all how this rank ended, and waits until they have. Throws what stopped the run: the same on all ranks.
  void end(const std::exception_ptr& exception);

  /// After a run, on rank 0: what each rank passed. Elsewhere nothing.
  std::vector<std::string> gather(std::string bytes);

 private:
  enum class Kind : char { begin, call, ended, result };
  enum class Cause : char { none, own, misfit, stopped };
  struct End {
    Cause cause = Cause::none;
    int type = 0;  // of the exception; see rank_error.hpp
    std::string text;
  };
  struct Message {
    Kind kind = Kind::begin;
    std::string bytes;
  };
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  void tell(int to, Kind kind, std::string_view bytes);
  std::optional<Message> poll(int from);
  void hear_alerts();
  void alert(const End& end);
  Deadline deadline() const { return std::chrono::steady_clock::now() + timeout_; }
  /// Ends the job if the deadline has passed.
  void keep(const Deadline& deadline, int from, const Waiting& waiting);
  std::string await_call(int from, const Deadline& deadline, const Waiting& waiting);
  Message await(int from, const Deadline& deadline, const Waiting& waiting);
  [[noreturn]] void throw_stopped(const std::string& text, const Waiting& waiting);
  static void throw_cause(const std::vector<End>& ends, int self, const std::exception_ptr& exception);
  static std::string pack(const End& end);
  static End unpack(std::string_view bytes);

  std::shared_ptr<Wire> wire_;
  const int ranks_;
  const std::chrono::milliseconds timeout_;
  std::uint64_t run_ = 0;
  bool running_ = false;
  End own_;                                // how this rank's run ends, as far as it is known
  std::vector<std::optional<End>> ended_;  // of the others, once it is known
  std::vector<bool> alerted_;              // who has told of a failure
  std::string stop_text_;                  // of the first alert
};

}  // namespace shardcheck
