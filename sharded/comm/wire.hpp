// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of one job. What they mean is the affair of process_world.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace shardcheck {

/// One process's end. Messages from one process on one channel arrive whole and in their order. Not thread safe.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int process() const = 0;
  virtual int processes() const = 0;
  /// Returns at once; the bytes travel while receive and idle are called.
  virtual void send(int to, int channel, std::string bytes) = 0;
  /// The next message, if it has arrived.
  virtual std::optional<std::string> receive(int from, int channel) = 0;
  /// True once everything that was sent has left.
  virtual bool idle() = 0;
  /// Ends all processes of the job, after printing the message.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
};

/// What libshardcheck_mpi.so exports, as `extern "C" const WireModule shardcheck_wire_module`.
struct WireModule {
  /// Must be kWireModuleVersion: a module of another build is refused, not tried.
  int version;
  /// Joins the job, once per process. Leaving it, which the destructor does, waits until every process leaves.
  /// Throws InputError if that can't be.
  std::shared_ptr<Wire> (*open)();
  /// One sentence about the library. Never throws.
  std::string (*describe)();
};
inline constexpr int kWireModuleVersion = 1;

}  // namespace shardcheck
