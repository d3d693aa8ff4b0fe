// SPDX-License-Identifier: Apache-2.0
// Freed blocks of a host device, kept for its next tensors of about that size. Memory fresh from the system costs a page
// fault per 4 KiB, which was a tenth of a prefill. Only host devices include this.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace shardcheck::cpu {

/// Uninitialised bytes, 64-byte aligned.
struct Block {
  std::byte* bytes = nullptr;
  std::size_t size = 0;  // at least what was asked for
};

/// Thread safe. Keeps at most `limit` bytes: beyond that the blocks that were freed first go back to the system.
class BlockPool {
 public:
  static constexpr std::size_t kLimit = std::size_t{256} << 20;
  explicit BlockPool(std::size_t limit = kLimit) : limit_(limit) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  Block take(std::size_t bytes);
  void give(Block block);
  std::size_t kept() const;  // bytes

 private:
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::vector<Block> free_;  // in the order in which they were freed
  std::size_t kept_ = 0;
};

}  // namespace shardcheck::cpu
