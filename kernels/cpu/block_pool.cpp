// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_pool.hpp"

#include <algorithm>
#include <iterator>
#include <new>

#include "kernels/cpu/memory.hpp"

namespace shardcheck::cpu {
namespace {

/// Smaller blocks are left to the allocator, which keeps them itself.
constexpr std::size_t kSmallest = std::size_t{64} << 10;

/// The address sanitizer finds a use after free only if memory is really freed.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

void release(const Block& block) { ::operator delete(block.bytes, std::align_val_t{kAlignment}); }

}  // namespace

BlockPool::~BlockPool() {
  for (const Block& block : free_) release(block);
}

Block BlockPool::take(std::size_t bytes) {
  if (bytes >= kSmallest) {
    const std::lock_guard lock(mutex_);
    // The one freed last is the likeliest to be in a cache still.
    const auto fits = [bytes](const Block& block) {
      return block.size >= bytes && block.size <= bytes + bytes / 4;
    };
    const auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
    if (found != free_.rend()) {
      const Block block = *found;
      free_.erase(std::next(found).base());
      kept_ -= block.size;
      return block;
    }
  }
  return {static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlignment})), bytes};
}

void BlockPool::give(Block block) {
  if (!kKeeps || block.size < kSmallest || block.size > limit_) return release(block);
  std::vector<Block> dropped;
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(block);
    kept_ += block.size;
    auto keep = free_.begin();
    for (; kept_ > limit_; ++keep) kept_ -= keep->size;
    dropped.assign(free_.begin(), keep);
    free_.erase(free_.begin(), keep);
  }
  for (const Block& old : dropped) release(old);
}

std::size_t BlockPool::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace shardcheck::cpu
