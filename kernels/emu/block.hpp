// SPDX-License-Identifier: Apache-2.0
// The block that a host thread runs: its threads, warps and shared memory, and the fibers that they run on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "kernels/emu/block_runner.hpp"
#include "kernels/emu/fiber.hpp"
#include "kernels/emu/schedule.hpp"
#include "kernels/emu/shared_memory.hpp"
#include "kernels/emu/thread.hpp"

namespace shardcheck::emu {

class BlockRunner;

/// A fiber that runs CUDA threads. It takes the next one when its thread has ended, so a kernel without barriers has
/// one worker and no switches.
struct Worker {
  explicit Worker(BlockRunner& owner);

  BlockRunner& runner;
  std::span<std::byte> stack;
  Thread* thread = nullptr;  // null: to leave
  Fiber fiber;
};

/// One block after the other. A host thread has one and keeps its fibers.
class BlockRunner {
 public:
  BlockRunner() = default;
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void run(const Grid& grid, const RunOptions& options, const std::function<void()>& body);

  // Of the running thread; see operations.hpp.
  int barrier(const char* name, bool predicate, const std::source_location& at);
  std::uint64_t operate(const WarpOperation& operation, std::uint32_t mask, std::uint64_t value,
                        unsigned source_lane, const std::source_location& at);
  SharedMemory& shared() { return shared_; }

  std::span<std::byte> take_stack() { return stacks_.take(); }
  static void work(void* worker);

 private:
  void start_grid(const Grid& grid, const RunOptions& options);
  void run_block(std::uint64_t order_seed);
  void run_body(Worker& worker);
  Thread* next_thread();
  Fiber& prepare(Thread* next);
  void assign(Worker& worker, Thread& thread);
  void wait(Thread& self);
  void complete(Warp& warp, WarpGroup& group);
  void unwind();
  std::string stuck() const;
  std::string missing_lane(const Warp& warp, const WarpGroup& group) const;

  const std::function<void()>* body_ = nullptr;
  unsigned threads_used_ = 0;
  unsigned ended_ = 0;
  std::array<Thread, kMostThreads> threads_;
  std::array<Warp, kMostWarps> warps_;
  Schedule schedule_;
  SharedMemory shared_;
  std::exception_ptr error_;  // the first one of the block

  // The barrier that threads wait at, and what the last one came to.
  const char* barrier_name_ = nullptr;
  std::source_location barrier_place_;
  unsigned at_barrier_ = 0;
  int barrier_count_ = 0;
  int barrier_result_ = 0;

  Fiber host_;
  StackPool stacks_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
};

}  // namespace shardcheck::emu
