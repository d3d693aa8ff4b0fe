// SPDX-License-Identifier: Apache-2.0
// Stacks that a host thread switches between, about 20 ns a switch.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shardcheck::emu {

/// A stack and where it was left. Address and thread sanitizer are told of every switch.
class Fiber {
 public:
  /// Runs on the fiber's stack. It lets no exception out and ends with leave_for.
  using Entry = void (*)(void* argument);

  /// The stack that the calling thread runs on.
  Fiber();
  /// One that starts with entry(argument) when it is first switched to. The stack outlives it.
  Fiber(std::span<std::byte> stack, Entry entry, void* argument);
  /// Precondition: it was never started, or has left for good.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Leaves this fiber, which is running, for `next`; returns when something switches back.
  void switch_to(Fiber& next);
  /// Leaves this fiber, which is running, for good.
  [[noreturn]] void leave_for(Fiber& next);

 private:
  struct Switch;

  void jump(Fiber& next);
  void arrived_from(Fiber& previous, void* context);

  void* context_ = nullptr;  // where it was left
  Fiber* next_ = nullptr;    // the one it was left for
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  // For the sanitizers.
  const void* stack_bottom_ = nullptr;
  std::size_t stack_size_ = 0;
  void* fake_stack_ = nullptr;
  void* thread_state_ = nullptr;
};

/// Stacks for fibers, mapped in slabs and kept until the end. Neighbours are 64 bytes more than their size apart:
/// stacks at a power of two would compete for the same cache sets.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  /// A stack that nobody has.
  std::span<std::byte> take();

  /// False if a fiber has used more than its stack since it was taken, or asked for last.
  static bool intact(std::span<std::byte> stack);

 private:
  std::vector<std::span<std::byte>> slabs_;
  std::size_t taken_ = 0;  // of the last slab
};

}  // namespace shardcheck::emu
