// SPDX-License-Identifier: Apache-2.0
// Shared memory that knows who used it. Two accesses of an element by different threads, at least one of them a write,
// are a race unless a __syncthreads, or within a warp a __syncwarp, lies between them. The check goes by what orders
// the accesses, not by when they ran, so it finds a race whatever the order of threads was.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/emu/thread.hpp"

namespace shardcheck::emu {

inline constexpr std::uint16_t kNoThread = 0xFFFF;
inline constexpr std::uint32_t kManyStamps = 0xFFFFFFFF;

/// Per lane the stamp of its access, where lanes of one warp accessed an element at several stamps.
using LaneStamps = std::array<std::uint32_t, kWarpLanes>;

/// Who accessed an element in an interval between two __syncthreads: the lanes of one warp, each with its stamp
/// (WarpOrder), and one thread of another warp. Lanes whose access was ordered before a later one are left out.
struct AccessSet {
  std::uint32_t interval = 0;
  std::uint32_t stamp = 0;  // of all lanes, or kManyStamps
  std::uint32_t lanes = 0;
  std::uint16_t warp = 0;
  std::uint16_t other = kNoThread;
};

/// What is known of one element.
struct SharedCell {
  std::uint32_t written_in = 0;  // interval
  std::uint32_t write_stamp = 0;
  std::uint16_t writer = kNoThread;
  bool written_atomically = false;
  AccessSet readers;
};

/// One array of a block's shared memory.
class SharedArray {
 public:
  /// What the array is for the blocks of one grid. `element` in bytes.
  void declare(const void* site, const char* name, std::size_t count, std::size_t element);
  /// Its elements are 0xFF and unwritten: `first_interval` is the block's.
  void start_block(std::uint32_t first_interval);

  const void* site() const { return site_; }
  const char* name() const { return name_; }
  std::size_t count() const { return count_; }
  std::size_t element() const { return element_; }
  std::uint32_t first_interval() const { return first_interval_; }
  std::byte* bytes() { return bytes_.get(); }

  // The current thread is about to read, write or atomically change element i. Each throws DeviceError.
  void read(std::size_t i);
  void write(std::size_t i);
  /// `reads` is false if the old value isn't part of the new one (exchange).
  void change(std::size_t i, bool reads);

 private:
  enum class Use { read, write, change };

  static bool ordered_after_write(const SharedCell& cell, const Thread& thread);
  /// A thread of the set whose access is in no order with `thread`; kNoThread if there is none.
  static std::uint16_t unordered(const AccessSet& set, const std::vector<LaneStamps>& stamps,
                                 std::size_t i, const Thread& thread);
  static void note(AccessSet& set, std::vector<LaneStamps>& stamps, std::size_t i,
                   std::size_t count, const Thread& thread);
  static void note_later(AccessSet& set, std::vector<LaneStamps>& stamps, std::size_t i,
                         std::size_t count, const Thread& thread);
  void check_changes(std::size_t i, const Thread& thread, Use use);
  [[noreturn]] void race(std::size_t i, Use now, Use before, std::uint16_t other) const;
  [[noreturn]] void unwritten(std::size_t i) const;
  [[noreturn]] void outside(std::size_t i) const;

  const void* site_ = nullptr;
  const char* name_ = "";
  std::size_t count_ = 0;
  std::size_t element_ = 0;
  std::uint32_t first_interval_ = 0;
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t capacity_ = 0;
  std::vector<SharedCell> cells_;
  std::vector<LaneStamps> reader_stamps_;  // empty until lanes read at several stamps
  std::vector<AccessSet> changes_;         // empty until something is changed atomically
  std::vector<LaneStamps> change_stamps_;
};

/// The arrays that a block has declared.
class SharedMemory {
 public:
  void start_grid(std::size_t dynamic_bytes, std::size_t limit);
  void start_block(std::uint32_t first_interval) { first_interval_ = first_interval; }

  /// The array of a place in the source; the first thread of a block that comes by sets it up.
  SharedArray& fixed(const void* site, const char* name, std::size_t count, std::size_t element);
  /// The launch's bytes as elements of one size.
  SharedArray& dynamic(const char* name, std::size_t element);

 private:
  SharedArray* find(const void* site);
  SharedArray& add(const void* site, const char* name, std::size_t count, std::size_t element);
  /// Overwrites and forgets what an earlier block left.
  SharedArray& in_this_block(SharedArray& array);

  std::size_t dynamic_bytes_ = 0;
  std::size_t limit_ = 0;
  std::size_t fixed_bytes_ = 0;
  std::uint32_t first_interval_ = 0;
  std::vector<std::unique_ptr<SharedArray>> arrays_;
  std::size_t used_ = 0;
};

inline bool SharedArray::ordered_after_write(const SharedCell& cell, const Thread& thread) {
  if (cell.written_in != current_interval || cell.writer == thread.id) return true;
  if (cell.writer / kWarpLanes != thread.warp->index) return false;
  return thread.warp->order.ordered(cell.writer % kWarpLanes, cell.write_stamp, thread.lane);
}

inline void SharedArray::note(AccessSet& set, std::vector<LaneStamps>& stamps, std::size_t i,
                              std::size_t count, const Thread& thread) {
  const Warp& warp = *thread.warp;
  if (set.interval != current_interval) {
    set = {current_interval, warp.order.stamp(), thread.lane_bit(), warp.index, kNoThread};
  } else if (set.warp != warp.index) {
    set.other = thread.id;
  } else if (set.stamp == warp.order.stamp()) {
    set.lanes |= thread.lane_bit();
  } else {
    note_later(set, stamps, i, count, thread);
  }
}

inline void SharedArray::read(std::size_t i) {
  if (i >= count_) [[unlikely]]
    outside(i);
  SharedCell& cell = cells_[i];
  const Thread& thread = *current_thread;
  if (cell.written_in < first_interval_) [[unlikely]]
    unwritten(i);
  if (!ordered_after_write(cell, thread)) [[unlikely]] {
    race(i, Use::read, cell.written_atomically ? Use::change : Use::write, cell.writer);
  }
  if (!changes_.empty()) [[unlikely]]
    check_changes(i, thread, Use::read);
  note(cell.readers, reader_stamps_, i, count_, thread);
}

inline void SharedArray::write(std::size_t i) {
  if (i >= count_) [[unlikely]]
    outside(i);
  SharedCell& cell = cells_[i];
  const Thread& thread = *current_thread;
  if (!ordered_after_write(cell, thread)) [[unlikely]] {
    race(i, Use::write, cell.written_atomically ? Use::change : Use::write, cell.writer);
  }
  if (cell.readers.interval == current_interval) {
    const std::uint16_t reader = unordered(cell.readers, reader_stamps_, i, thread);
    if (reader != kNoThread) [[unlikely]]
      race(i, Use::write, Use::read, reader);
    cell.readers.interval = 0;  // all of them come before this write
  }
  if (!changes_.empty()) [[unlikely]]
    check_changes(i, thread, Use::write);
  cell.written_in = current_interval;
  cell.write_stamp = thread.warp->order.stamp();
  cell.writer = thread.id;
  cell.written_atomically = false;
}

}  // namespace shardcheck::emu
