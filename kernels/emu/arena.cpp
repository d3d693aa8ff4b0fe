// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/arena.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model/error.hpp"

namespace shardcheck::emu {
namespace {

// The granularity of protection. With pages of this size opening 20 MB takes some us, with 4 KiB pages 2 ms.
constexpr std::size_t kPage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Arena::Arena(std::size_t capacity) : capacity_(round_up(capacity, kPage)) {
  reserved_bytes_ = capacity_ + kPage;
  reserved_ = mmap(nullptr, reserved_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
  if (reserved_ == MAP_FAILED) {
    throw InputError(
        fmt::format("emu: no range of {} bytes of addresses for the device's memory: {}; is there "
                    "a limit (ulimit -v)?",
                    capacity_, std::strerror(errno)));
  }
  const std::size_t skipped = round_up(reinterpret_cast<std::uintptr_t>(reserved_), kPage) -
                              reinterpret_cast<std::uintptr_t>(reserved_);
  base_ = static_cast<std::byte*>(reserved_) + skipped;
  static_cast<void>(madvise(base_, capacity_, MADV_HUGEPAGE));  // where there are none it is only slower
  free_.emplace(0, capacity_);
}

Arena::~Arena() { munmap(reserved_, reserved_bytes_); }

std::byte* Arena::allocate(std::size_t bytes) {
  if (bytes > capacity_) return nullptr;
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), kAlignment);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& range) { return range.second >= size; });
  if (found == free_.end()) return nullptr;
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > size) free_.emplace(offset + size, available - size);
  taken_.emplace(offset, size);
  in_use_ += size;
  reached_ = std::max(reached_, offset + size);
  return base_ + offset;
}

void Arena::release(std::byte* pointer) {
  const auto taken = taken_.find(static_cast<std::size_t>(pointer - base_));
  auto [offset, size] = *taken;
  taken_.erase(taken);
  in_use_ -= size;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

bool Arena::contains(const void* pointer) const {
  const auto* const byte = static_cast<const std::byte*>(pointer);
  return byte >= base_ && byte < base_ + capacity_;
}

void Arena::protect(bool open) {
  if (reached_ == 0) return;
  if (mprotect(base_, round_up(reached_, kPage), open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0)
    return;
  // A device whose memory stays open or shut would make every check that follows meaningless.
  std::fprintf(stderr, "shardcheck: emu: mprotect of the device's memory failed: %s\n",
               std::strerror(errno));
  std::abort();
}

}  // namespace shardcheck::emu
