// SPDX-License-Identifier: Apache-2.0
// libshardcheck_mpi.so: the wire between processes, by MPI. All calls come from one thread and none of them waits
// inside MPI, which would spin on a core that another process may need.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "model/error.hpp"
#include "sharded/comm/wire.hpp"

namespace shardcheck {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 30;  // MPI counts are int
constexpr int kGoodbye = 1000;                        // a tag beyond all channels

/// Bytes that leave as their size and then as pieces.
class Outgoing {
 public:
  Outgoing(int to, int channel, std::string bytes)
      : bytes_(std::move(bytes)), size_(bytes_.size()) {
    MPI_Isend(&size_, sizeof size_, MPI_BYTE, to, channel, MPI_COMM_WORLD, &requests_.emplace_back());
    for (std::size_t at = 0; at < bytes_.size(); at += kPiece) {
      const int count = static_cast<int>(std::min(kPiece, bytes_.size() - at));
      MPI_Isend(bytes_.data() + at, count, MPI_BYTE, to, channel, MPI_COMM_WORLD,
                &requests_.emplace_back());
    }
  }
  bool gone() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }

 private:
  const std::string bytes_;
  const std::size_t size_;
  std::vector<MPI_Request> requests_;
};

/// A message of which the size has arrived.
class Incoming {
 public:
  Incoming(int from, int channel, std::size_t size) : bytes_(size, '\0') {
    for (std::size_t at = 0; at < size; at += kPiece) {
      const int count = static_cast<int>(std::min(kPiece, size - at));
      MPI_Irecv(bytes_.data() + at, count, MPI_BYTE, from, channel, MPI_COMM_WORLD,
                &requests_.emplace_back());
    }
  }
  bool here() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
  std::vector<MPI_Request> requests_;
};

class MpiWire final : public Wire {
 public:
  MpiWire() {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &process_);
    MPI_Comm_size(MPI_COMM_WORLD, &processes_);
  }
  ~MpiWire() override {
    for (int other = 0; other < processes_; ++other) {
      if (other != process_)
        sent_.push_back(std::make_unique<Outgoing>(other, kGoodbye, std::string()));
    }
    // A process that another one still waits for must be there to say that it leaves; MPI would only hang.
    for (int other = 0; other < processes_; ++other) {
      while (other != process_ && !arrived(other, kGoodbye)) {
        idle();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    MPI_Finalize();
  }
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  int process() const override { return process_; }
  int processes() const override { return processes_; }

  void send(int to, int channel, std::string bytes) override {
    sent_.push_back(std::make_unique<Outgoing>(to, channel, std::move(bytes)));
  }

  std::optional<std::string> receive(int from, int channel) override {
    std::optional<Incoming>& incoming = coming_[{from, channel}];
    if (!incoming) {
      const bool left = arrived(from, kGoodbye);
      if (!arrived(from, channel)) {  // what it sent before it left has arrived before its goodbye
        if (left) throw CommError(fmt::format("process {} has left the job", from));
        return std::nullopt;
      }
      std::size_t size = 0;
      MPI_Recv(&size, sizeof size, MPI_BYTE, from, channel, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      incoming.emplace(from, channel, size);
    }
    if (!incoming->here()) return std::nullopt;
    std::string bytes = incoming->take();
    incoming.reset();
    return bytes;
  }

  bool idle() override {
    sent_.remove_if([](const std::unique_ptr<Outgoing>& message) { return message->gone(); });
    return sent_.empty();
  }

  [[noreturn]] void abort(const std::string& message) override {
    fmt::print(stderr, "shardcheck: {}\n", message);
    std::fflush(stderr);
    constexpr int kFault = 3;  // exit code: a fault of the program
    MPI_Abort(MPI_COMM_WORLD, kFault);
    std::_Exit(kFault);
  }

 private:
  static bool arrived(int from, int tag) {
    int flag = 0;
    MPI_Iprobe(from, tag, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    return flag != 0;
  }

  int process_ = 0, processes_ = 1;
  std::list<std::unique_ptr<Outgoing>> sent_;
  std::map<std::pair<int, int>, std::optional<Incoming>> coming_;  // by sender and channel
};

std::shared_ptr<Wire> open() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized != 0)
    throw InputError(
        "communicator 'mpi': this process has joined the job before, and can't do it twice");
  return std::make_shared<MpiWire>();
}

std::string describe() {
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  const std::string_view text(version, static_cast<std::size_t>(length));
  return std::string(text.substr(0, text.find_first_of(",\n")));
}

}  // namespace
}  // namespace shardcheck

extern "C" {
extern const shardcheck::WireModule shardcheck_wire_module __attribute__((visibility("default")));
const shardcheck::WireModule shardcheck_wire_module = {shardcheck::kWireModuleVersion,
                                                       shardcheck::open, shardcheck::describe};
}
