// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/fiber.hpp"

#include <sys/mman.h>

#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <exception>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace shardcheck::emu {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStackBytes = 256 * 1024;  // their frames are larger
#else
constexpr std::size_t kStackBytes = 64 * 1024;
#endif
constexpr std::size_t kStackDistance = kStackBytes + 64;
constexpr std::size_t kStacksPerSlab = 32;

/// What stands at the low end of a stack as long as nothing has grown down to it.
constexpr auto kMark = [] {
  std::array<std::byte, 256> mark = {};
  mark.fill(std::byte{0xA5});
  return mark;
}();

}  // namespace

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::transfer_t;

/// Called on the fiber's own stack when it is first switched to.
struct Fiber::Switch {
  static void start(transfer_t transfer) {
    Fiber& previous = *static_cast<Fiber*>(transfer.data);
    Fiber& self = *previous.next_;
    self.arrived_from(previous, transfer.fctx);
    self.entry_(self.argument_);
    std::terminate();  // the entry's contract
  }
};

Fiber::Fiber() {
#if defined(__SANITIZE_THREAD__)
  thread_state_ = __tsan_get_current_fiber();
#endif
}

Fiber::Fiber(std::span<std::byte> stack, Entry entry, void* argument)
    : entry_(entry), argument_(argument), stack_bottom_(stack.data()), stack_size_(stack.size()) {
  std::byte* const top = stack.data() + stack.size();  // stacks grow down
  context_ = boost::context::detail::make_fcontext(top, stack.size(), &Switch::start);
#if defined(__SANITIZE_THREAD__)
  thread_state_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  if (entry_ != nullptr) __tsan_destroy_fiber(thread_state_);
#endif
}

void Fiber::jump(Fiber& next) {
  next_ = &next;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(next.thread_state_, 0);
#endif
  const transfer_t transfer = jump_fcontext(next.context_, this);
  arrived_from(*static_cast<Fiber*>(transfer.data), transfer.fctx);
}

void Fiber::arrived_from([[maybe_unused]] Fiber& previous, void* context) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &previous.stack_bottom_, &previous.stack_size_);
#endif
  previous.context_ = context;
}

void Fiber::switch_to(Fiber& next) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, next.stack_bottom_, next.stack_size_);
#endif
  jump(next);
}

void Fiber::leave_for(Fiber& next) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(nullptr, next.stack_bottom_, next.stack_size_);
#endif
  jump(next);
  std::terminate();  // nothing switches back
}

StackPool::~StackPool() {
  for (const std::span<std::byte> slab : slabs_) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(slab.data(), slab.size());  // of frames that were left for good
#endif
    munmap(slab.data(), slab.size());
  }
}

std::span<std::byte> StackPool::take() {
  if (slabs_.empty() || taken_ == kStacksPerSlab) {
    const std::size_t bytes = kStackDistance * kStacksPerSlab;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    slabs_.emplace_back(static_cast<std::byte*>(memory), bytes);
    taken_ = 0;
  }
  const std::span<std::byte> stack = slabs_.back().subspan(kStackDistance * taken_++, kStackBytes);
  std::memcpy(stack.data(), kMark.data(), kMark.size());
  return stack;
}

bool StackPool::intact(std::span<std::byte> stack) {
  if (std::memcmp(stack.data(), kMark.data(), kMark.size()) == 0) return true;
  std::memcpy(stack.data(), kMark.data(), kMark.size());
  return false;
}

}  // namespace shardcheck::emu
