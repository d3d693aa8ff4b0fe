// SPDX-License-Identifier: Apache-2.0
#include "sharded/comm/process_link.hpp"

#include <fmt/format.h>

#include <thread>

#include "model/error.hpp"
#include "sharded/comm/parcel.hpp"
#include "sharded/comm/rank_error.hpp"

namespace shardcheck {
namespace {

constexpr int kOrdered = 0, kAlerts = 1;  // channels

/// Looks for messages at once, then less and less often: there may be more processes than cores.
class Patience {
 public:
  void pause() {
    if (++looks_ < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 500 ? 20 : 500));
    }
  }

 private:
  int looks_ = 0;
};

}  // namespace

std::string ProcessLink::pack(const End& end) {
  return ParcelWriter().value(end.cause).value(end.type).text(end.text).take();
}

ProcessLink::End ProcessLink::unpack(std::string_view bytes) {
  ParcelReader in(bytes);
  End end;
  end.cause = in.value<Cause>();
  end.type = in.value<int>();
  end.text = in.text();
  return end;
}

void ProcessLink::tell(int to, Kind kind, std::string_view bytes) {
  wire_->send(to, kOrdered, ParcelWriter().value(kind).text(bytes).take());
}

std::optional<ProcessLink::Message> ProcessLink::poll(int from) {
  const std::optional<std::string> message = wire_->receive(from, kOrdered);
  if (!message) return std::nullopt;
  ParcelReader in(*message);
  const auto kind = in.value<Kind>();
  return Message{kind, std::string(in.text())};
}

void ProcessLink::keep(const Deadline& deadline, int from, const Waiting& waiting) {
  if (!deadline || std::chrono::steady_clock::now() < *deadline) return;
  wire_->abort(
      fmt::format("rank {} has waited {} s for rank {}: {}. Rank {} hangs, waits for something "
                  "else, or needs longer; "
                  "SHARDCHECK_TIMEOUT sets the seconds to wait",
                  rank(), std::chrono::duration<double>(timeout_).count(), from, waiting(), from));
}

ProcessLink::Message ProcessLink::await(int from, const Deadline& deadline, const Waiting& waiting) {
  for (Patience patience;; patience.pause()) {
    if (std::optional<Message> message = poll(from)) return std::move(*message);
    keep(deadline, from, waiting);
  }
}

void ProcessLink::alert(const End& end) {
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank()) wire_->send(other, kAlerts, pack(end));
  }
}

void ProcessLink::hear_alerts() {
  for (int other = 0; other < ranks_; ++other) {
    const auto index = static_cast<std::size_t>(other);
    if (other == rank() || alerted_[index]) continue;
    const std::optional<std::string> message = wire_->receive(other, kAlerts);
    if (!message) continue;
    alerted_[index] = true;
    const End end = unpack(*message);
    if (!stop_text_.empty()) continue;
    stop_text_ = end.cause == Cause::misfit
                     ? end.text
                     : fmt::format("stopped, because rank {} failed: {}", other, end.text);
  }
}

bool ProcessLink::stopped() {
  hear_alerts();
  return !stop_text_.empty();
}

void ProcessLink::throw_stopped(const std::string& text, const Waiting& waiting) {
  if (own_.cause == Cause::none) own_ = {Cause::stopped, 0, text};
  throw CommError(fmt::format("{}: {}", waiting(), text));
}

void ProcessLink::misfit(const std::string& text) {
  if (own_.cause == Cause::none) {
    own_ = {Cause::misfit, 0, text};
    alert(own_);
  }
  throw CommError(text);
}

void ProcessLink::begin(const std::string& what) {
  const auto ranks = static_cast<std::size_t>(ranks_);
  ++run_;
  running_ = true;
  own_ = {};
  stop_text_.clear();
  ended_.assign(ranks, std::nullopt);
  alerted_.assign(ranks, false);
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank()) tell(other, Kind::begin, what);
  }
  for (int other = 0; other < ranks_; ++other) {
    if (other == rank()) continue;
    const Message message = await(other, std::nullopt, {});
    if (message.kind == Kind::begin && message.bytes == what) continue;
    running_ = false;
    throw CommError(fmt::format(
        "rank {} begins a run over {}, but rank {} {}; all processes must run the same command on "
        "the same files",
        rank(), what, other,
        message.kind == Kind::begin ? "begins one over " + message.bytes : "does something else"));
  }
}

std::vector<std::string> ProcessLink::exchange(const std::vector<int>& peers,
                                               const std::string& call, const Waiting& waiting) {
  if (stopped()) throw_stopped(stop_text_, waiting);
  for (const int peer : peers) tell(peer, Kind::call, call);
  const Deadline until = deadline();
  std::vector<std::string> calls;
  for (const int peer : peers) calls.push_back(await_call(peer, until, waiting));
  for (Patience patience; !wire_->idle(); patience.pause()) keep(until, peers.back(), waiting);
  return calls;
}

std::string ProcessLink::await_call(int from, const Deadline& deadline, const Waiting& waiting) {
  std::optional<End>& ended = ended_[static_cast<std::size_t>(from)];
  for (Patience patience; !ended; patience.pause()) {
    if (stopped()) throw_stopped(stop_text_, waiting);
    std::optional<Message> message = poll(from);
    if (message && message->kind == Kind::call) return std::move(message->bytes);
    if (message) ended = unpack(message->bytes);
    keep(deadline, from, waiting);
  }
  if (stopped()) throw_stopped(stop_text_, waiting);
  if (ended->cause != Cause::none) throw_stopped(ended->text, waiting);
  misfit(
      fmt::format("deadlock: rank {} has returned while rank {} waits for it: rank {} waits in {}. "
                  "Every rank must issue "
                  "the same collectives in the same order.",
                  from, rank(), rank(), waiting()));
}

void ProcessLink::end(const std::exception_ptr& exception) {
  if (exception && own_.cause == Cause::none) {
    own_ = {Cause::own, type_number(exception), message_of(exception)};
    alert(own_);
  }
  const Waiting waiting = [this] {
    return own_.cause == Cause::none ? std::string("this rank has ended its run")
                                     : fmt::format("this rank has failed ({})", own_.text);
  };
  for (int other = 0; other < ranks_; ++other) {
    if (other != rank()) tell(other, Kind::ended, pack(own_));
  }
  const Deadline until = deadline();
  std::vector<End> ends(static_cast<std::size_t>(ranks_), own_);
  for (int other = 0; other < ranks_; ++other) {
    const auto index = static_cast<std::size_t>(other);
    if (other == rank()) continue;
    while (!ended_[index]) {
      const Message message = await(
          other, until, waiting);  // calls that wait for this rank will learn that it has ended
      if (message.kind == Kind::ended) ended_[index] = unpack(message.bytes);
    }
    ends[index] = *ended_[index];
    const bool alerts = ends[index].cause == Cause::own || ends[index].cause == Cause::misfit;
    for (Patience patience; alerts && !alerted_[index]; patience.pause()) {
      hear_alerts();
      keep(until, other, waiting);
    }
  }
  for (Patience patience; !wire_->idle(); patience.pause()) keep(until, ranks_ - 1, waiting);
  running_ = false;
  throw_cause(ends, rank(), exception);
}

/// A rank's own failure comes before what it did to others.
void ProcessLink::throw_cause(const std::vector<End>& ends, int self,
                              const std::exception_ptr& exception) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].cause != Cause::own) continue;
    if (static_cast<int>(rank) == self) rethrow_with_rank(exception, self);
    throw_numbered(ends[rank].type, fmt::format("rank {}: {}", rank, ends[rank].text));
  }
  for (const Cause cause : {Cause::misfit, Cause::stopped}) {
    for (const End& end : ends) {
      if (end.cause == cause) throw CommError(end.text);
    }
  }
}

std::vector<std::string> ProcessLink::gather(std::string bytes) {
  const Deadline until = deadline();
  const Waiting waiting = [] { return std::string("gathering the results"); };
  if (rank() != 0) {
    tell(0, Kind::result, bytes);
    for (Patience patience; !wire_->idle(); patience.pause()) keep(until, 0, waiting);
    return {};
  }
  std::vector<std::string> all;
  all.push_back(std::move(bytes));
  for (int other = 1; other < ranks_; ++other) {
    Message message = await(other, until, waiting);
    if (message.kind != Kind::result) {
      throw CommError(
          fmt::format("rank {} does something else while rank 0 gathers results; all processes "
                      "must run the same "
                      "command on the same files",
                      other));
    }
    all.push_back(std::move(message.bytes));
  }
  return all;
}

}  // namespace shardcheck
