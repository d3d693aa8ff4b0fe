// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/block_runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "kernels/emu/block.hpp"
#include "kernels/emu/operations.hpp"
#include "model/error.hpp"

namespace shardcheck::emu {

namespace {

/// Thrown where a thread waits, to unwind it after another one has failed.
struct Abandoned {};

bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

constexpr std::uint32_t kLastInterval = std::uint32_t{1} << 31;

}  // namespace

namespace {

/// The runner of the calling host thread.
BlockRunner& this_runner() {
  thread_local BlockRunner runner;
  return runner;
}

BlockRunner& runner_in_kernel(const char* what) {
  if (current_thread == nullptr) fail(what);
  return this_runner();
}

}  // namespace

Worker::Worker(BlockRunner& owner)
    : runner(owner), stack(owner.take_stack()), fiber(stack, &BlockRunner::work, this) {}

BlockRunner::~BlockRunner() {
  for (const std::unique_ptr<Worker>& worker : workers_) {
    worker->thread = nullptr;
    host_.switch_to(worker->fiber);
  }
}

void BlockRunner::work(void* worker) {
  Worker& self = *static_cast<Worker*>(worker);
  BlockRunner& runner = self.runner;
  while (self.thread != nullptr) {
    runner.run_body(self);
    Thread* const next = runner.next_thread();
    if (next != nullptr && next->worker == nullptr) {
      runner.assign(self, *next);
      continue;
    }
    runner.idle_.push_back(&self);
    self.fiber.switch_to(runner.prepare(next));
  }
  self.fiber.leave_for(runner.host_);
}

void BlockRunner::run_body(Worker& worker) {
  std::exception_ptr error;
  try {
    (*body_)();
  } catch (const Abandoned&) {
  } catch (...) {
    error = std::current_exception();
  }
  Thread& thread = *worker.thread;
  if (!StackPool::intact(worker.stack)) {
    error = std::make_exception_ptr(DeviceError(message(
        thread.index, fmt::format("the thread's local variables need more than {} bytes of stack",
                                  worker.stack.size()))));
  }
  if (error != nullptr && error_ == nullptr) error_ = error;
  thread.state = ThreadState::ended;
  thread.worker = nullptr;
  ++ended_;
}

/// The thread that goes on now; null if none can, or one has failed: then the host thread does.
Thread* BlockRunner::next_thread() {
  if (error_ != nullptr) return nullptr;
  const int id = schedule_.next();
  return id == Schedule::kNobody ? nullptr : &threads_[static_cast<unsigned>(id)];
}

void BlockRunner::assign(Worker& worker, Thread& thread) {
  worker.thread = &thread;
  thread.worker = &worker;
  current_thread = &thread;
  threadIdx = thread.index;
}

/// The fiber to switch to for `next`, with the built-in variables set.
Fiber& BlockRunner::prepare(Thread* next) {
  if (next == nullptr) return host_;
  if (next->worker != nullptr) {
    assign(*next->worker, *next);
  } else {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>(*this));
      idle_.push_back(workers_.back().get());
    }
    assign(*idle_.back(), *next);
    idle_.pop_back();
  }
  return next->worker->fiber;
}

/// Lets other threads run until the schedule comes back to this one.
void BlockRunner::wait(Thread& self) {
  Thread* const next = next_thread();
  if (next == &self) return;
  self.worker->fiber.switch_to(prepare(next));
  if (error_ != nullptr) throw Abandoned{};
}

int BlockRunner::barrier(const char* name, bool predicate, const std::source_location& at) {
  Thread& self = *current_thread;
  if (at_barrier_ == 0) {
    barrier_name_ = name;
    barrier_place_ = at;
    barrier_count_ = 0;
  } else if (!same(barrier_name_, name) || barrier_place_.line() != at.line() ||
             !same(barrier_place_.file_name(), at.file_name())) {
    fail(
        fmt::format("{}() at {} is reached while {} of the block's threads wait for it at {}() at "
                    "{}; all threads of a "
                    "block must come to the same barrier",
                    name, to_string(at), at_barrier_, barrier_name_, to_string(barrier_place_)));
  }
  barrier_count_ += predicate ? 1 : 0;
  self.state = ThreadState::at_barrier;
  self.waits_at = at;
  if (++at_barrier_ == threads_used_) {
    at_barrier_ = 0;
    barrier_result_ = barrier_count_;
    ++current_interval;
    for (unsigned i = 0; i < threads_used_; ++i) threads_[i].state = ThreadState::ready;
    schedule_.make_all_ready();
  }
  wait(self);
  return barrier_result_;
}

std::uint64_t BlockRunner::operate(const WarpOperation& operation, std::uint32_t mask,
                                   std::uint64_t value, unsigned source_lane,
                                   const std::source_location& at) {
  Thread& self = *current_thread;
  Warp& warp = *self.warp;
  if ((mask & self.lane_bit()) == 0) {
    fail(fmt::format("{} at {}: lane {} isn't named by its own mask {:#010x}", operation.name,
                     to_string(at), self.lane, mask));
  }
  if ((mask & ~warp.lanes) != 0) {
    fail(fmt::format(
        "{} at {}: mask {:#010x} names lane {}, but the block's last warp has {} lanes", operation.name,
        to_string(at), mask, std::countr_zero(mask & ~warp.lanes), std::popcount(warp.lanes)));
  }
  if ((mask >> source_lane & 1u) == 0) {
    fail(fmt::format("{} at {}: lane {} reads lane {}, which mask {:#010x} doesn't name",
                     operation.name, to_string(at), self.lane, source_lane, mask));
  }
  warp.values[self.lane] = value;
  warp.sources[self.lane] = static_cast<std::uint8_t>(source_lane);
  self.state = ThreadState::at_warp_operation;
  self.waits_at = at;

  unsigned g = 0;
  while (g < warp.group_count &&
         (warp.groups[g].operation != &operation || warp.groups[g].lanes != mask))
    ++g;
  if (g == warp.group_count) warp.groups[warp.group_count++] = {&operation, mask, 0};
  WarpGroup& group = warp.groups[g];
  group.arrived |= self.lane_bit();
  if (group.arrived == mask) complete(warp, group);
  wait(self);
  return warp.results[self.lane];
}

void BlockRunner::complete(Warp& warp, WarpGroup& group) {
  const std::uint32_t lanes = group.lanes;
  const WarpOperation& operation = *group.operation;
  group = warp.groups[--warp.group_count];
  if (operation.combine != nullptr) {
    operation.combine(lanes, warp.values.data(), warp.sources.data(), warp.results.data());
  }
  if (operation.orders_memory) warp.order.synchronize(lanes, lanes == warp.lanes);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    threads_[warp.first_thread + static_cast<unsigned>(std::countr_zero(rest))].state = ThreadState::ready;
  }
  schedule_.make_ready(warp.index, lanes);
}

void BlockRunner::run(const Grid& grid, const RunOptions& options, const std::function<void()>& body) {
  start_grid(grid, options);
  body_ = &body;
  // A permutation of the blocks without a list of them: i -> first + i * step, step prime to their number.
  const std::uint64_t blocks = grid.grid.count();
  std::uint64_t seed = options.order_seed;
  std::uint64_t random = next_random(seed);  // seeds may lie one step of the sequence apart
  std::uint64_t first = 0, step = 1;
  if (options.order_seed != 0) {
    first = next_random(random) % blocks;
    do step = next_random(random) % blocks + 1;
    while (std::gcd(step, blocks) != 1);
  }
  std::uint64_t block = first;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    blockIdx = {static_cast<unsigned>(block % gridDim.x),
                static_cast<unsigned>(block / gridDim.x % gridDim.y),
                static_cast<unsigned>(block / gridDim.x / gridDim.y)};
    run_block(options.order_seed == 0 ? 0 : next_random(random) | 1u);
    block = block + step < blocks ? block + step : block + step - blocks;
  }
}

void BlockRunner::start_grid(const Grid& grid, const RunOptions& options) {
  current_kernel = grid.kernel;
  gridDim = grid.grid;
  blockDim = grid.block;
  threads_used_ = static_cast<unsigned>(grid.block.count());
  for (unsigned id = 0; id < threads_used_; ++id) {
    Thread& thread = threads_[id];
    thread.index = thread_index(id);
    thread.id = static_cast<std::uint16_t>(id);
    thread.lane = static_cast<std::uint8_t>(id % kWarpLanes);
    thread.warp = &warps_[id / kWarpLanes];
  }
  for (unsigned w = 0; w * kWarpLanes < threads_used_; ++w) {
    const unsigned lanes = std::min(threads_used_ - w * kWarpLanes, kWarpLanes);
    warps_[w].index = static_cast<std::uint16_t>(w);
    warps_[w].lanes = ~0u >> (kWarpLanes - lanes);
    warps_[w].first_thread = w * kWarpLanes;
  }
  if (current_interval >= kLastInterval) {  // what is remembered of shared memory would be misread after a wrap
    shared_ = SharedMemory();
    current_interval = 0;
  }
  shared_.start_grid(grid.shared_bytes, options.shared_limit);
}

void BlockRunner::run_block(std::uint64_t order_seed) {
  ++current_interval;
  shared_.start_block(current_interval);
  for (unsigned id = 0; id < threads_used_; ++id) {
    threads_[id].state = ThreadState::ready;
    threads_[id].worker = nullptr;
  }
  for (unsigned w = 0; w * kWarpLanes < threads_used_; ++w) {
    warps_[w].order.restart();
    warps_[w].group_count = 0;
  }
  at_barrier_ = 0;
  ended_ = 0;
  schedule_.start(threads_used_, order_seed);

  host_.switch_to(prepare(next_thread()));
  if (error_ == nullptr && ended_ != threads_used_)
    error_ = std::make_exception_ptr(DeviceError(stuck()));
  if (error_ != nullptr) unwind();
  current_thread = nullptr;
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BlockRunner::unwind() {
  for (unsigned id = 0; id < threads_used_; ++id) {
    if (threads_[id].worker != nullptr) host_.switch_to(prepare(&threads_[id]));
  }
}

namespace {

void check_grid(const Grid& grid) {
  const dim3& g = grid.grid;
  const dim3& b = grid.block;
  const auto refuse = [&](const char* rule) {
    throw DeviceError(
        fmt::format("kernel {}: grid ({}, {}, {}) of blocks ({}, {}, {}) can't be launched: {}",
                    grid.kernel, g.x, g.y, g.z, b.x, b.y, b.z, rule));
  };
  if (g.count() == 0 || b.count() == 0) refuse("an extent is 0");
  if (g.x > 0x7FFFFFFFu || g.y > 65535 || g.z > 65535)
    refuse("at most 2147483647, 65535 and 65535 blocks");
  if (b.x > kMostThreads || b.y > kMostThreads || b.z > 64 || b.count() > kMostThreads) {
    refuse("a block has at most 1024 threads, 64 of them along z");
  }
}

}  // namespace

void run_grid(const Grid& grid, const RunOptions& options, const std::function<void()>& body) {
  check_grid(grid);
  if (current_thread != nullptr) fail("a kernel can't launch kernels");
  if (grid.shared_bytes > options.shared_limit) {
    throw DeviceError(fmt::format("kernel {}: {} bytes of dynamic shared memory, the limit is {}",
                                  grid.kernel, grid.shared_bytes, options.shared_limit));
  }
  this_runner().run(grid, options, body);
}

int block_barrier(const char* name, bool predicate, const std::source_location& at) {
  return runner_in_kernel(name).barrier(name, predicate, at);
}

std::uint64_t warp_operation(const WarpOperation& operation, std::uint32_t mask, std::uint64_t value,
                             unsigned source_lane, const std::source_location& at) {
  return runner_in_kernel(operation.name).operate(operation, mask, value, source_lane, at);
}

SharedArray& fixed_shared(const void* site, const char* name, std::size_t count, std::size_t element) {
  return runner_in_kernel(name).shared().fixed(site, name, count, element);
}

SharedArray& dynamic_shared(const char* name, std::size_t element) {
  return runner_in_kernel(name).shared().dynamic(name, element);
}

}  // namespace shardcheck::emu
