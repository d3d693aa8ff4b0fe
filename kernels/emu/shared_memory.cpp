// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/shared_memory.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace shardcheck::emu {
namespace {

constexpr std::size_t kMostFixedBytes = 48 * 1024;  // on every architecture

}  // namespace

void SharedArray::declare(const void* site, const char* name, std::size_t count, std::size_t element) {
  site_ = site;
  name_ = name;
  count_ = count;
  element_ = element;
  if (count * element > capacity_) {
    capacity_ = count * element;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(capacity_);
  }
  // Cells that an earlier grid left tell of intervals before any of this one.
  if (count > cells_.size()) cells_.resize(count);
  reader_stamps_.clear();
  changes_.clear();
  change_stamps_.clear();
}

void SharedArray::start_block(std::uint32_t first_interval) {
  first_interval_ = first_interval;
  if (count_ != 0) std::memset(bytes_.get(), 0xFF, count_ * element_);
}

std::uint16_t SharedArray::unordered(const AccessSet& set, const std::vector<LaneStamps>& stamps,
                                     std::size_t i, const Thread& thread) {
  if (set.interval != current_interval) return kNoThread;
  const auto id = [&set](int lane) {
    return static_cast<std::uint16_t>(set.warp * kWarpLanes + static_cast<unsigned>(lane));
  };
  if (set.warp != thread.warp->index) return id(std::countr_zero(set.lanes));
  if (set.other != kNoThread) return set.other;
  const WarpOrder& order = thread.warp->order;
  const bool many = set.stamp == kManyStamps;
  if (!many && order.known_to_all(set.stamp)) return kNoThread;
  for (std::uint32_t rest = set.lanes & ~thread.lane_bit(); rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto index = static_cast<unsigned>(lane);
    if (!order.ordered(index, many ? stamps[i][index] : set.stamp, thread.lane)) return id(lane);
  }
  return kNoThread;
}

void SharedArray::note_later(AccessSet& set, std::vector<LaneStamps>& stamps, std::size_t i,
                             std::size_t count, const Thread& thread) {
  const WarpOrder& order = thread.warp->order;
  const bool many = set.stamp == kManyStamps;
  std::uint32_t concurrent = 0;
  for (std::uint32_t rest = set.lanes & ~thread.lane_bit(); rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<unsigned>(std::countr_zero(rest));
    if (!order.ordered(lane, many ? stamps[i][lane] : set.stamp, thread.lane))
      concurrent |= 1u << lane;
  }
  if (concurrent == 0) {
    set.stamp = order.stamp();
    set.lanes = thread.lane_bit();
    return;
  }
  if (stamps.size() < count) stamps.resize(count);
  if (!many) stamps[i].fill(set.stamp);
  stamps[i][thread.lane] = order.stamp();
  set.stamp = kManyStamps;
  set.lanes = concurrent | thread.lane_bit();
}

void SharedArray::check_changes(std::size_t i, const Thread& thread, Use use) {
  const std::uint16_t other = unordered(changes_[i], change_stamps_, i, thread);
  if (other != kNoThread) race(i, use, Use::change, other);
  if (use == Use::write) changes_[i].interval = 0;
}

void SharedArray::change(std::size_t i, bool reads) {
  if (i >= count_) outside(i);
  SharedCell& cell = cells_[i];
  const Thread& thread = *current_thread;
  const bool written = cell.written_in >= first_interval_;
  if (reads && !written) unwritten(i);
  if (!cell.written_atomically && !ordered_after_write(cell, thread)) {
    race(i, Use::change, Use::write, cell.writer);
  }
  const std::uint16_t reader = unordered(cell.readers, reader_stamps_, i, thread);
  if (reader != kNoThread) race(i, Use::change, Use::read, reader);
  if (changes_.empty()) changes_.resize(count_);
  note(changes_[i], change_stamps_, i, count_, thread);
  if (!written) {
    cell.written_in = current_interval;
    cell.write_stamp = thread.warp->order.stamp();
    cell.writer = thread.id;
    cell.written_atomically = true;
  }
}

void SharedArray::race(std::size_t i, Use now, Use before, std::uint16_t other) const {
  static constexpr const char* kNow[] = {"is read", "is written", "is changed atomically"};
  static constexpr const char* kBefore[] = {"reads", "writes", "changes atomically"};
  const bool same_warp = other / kWarpLanes == current_thread->warp->index;
  fail(
      fmt::format("shared array '{}': element {} {} here, which thread {} {} in the same barrier "
                  "interval; between "
                  "the two must be a __syncthreads(){}",
                  name_, i, kNow[static_cast<int>(now)], to_string(thread_index(other)),
                  kBefore[static_cast<int>(before)], same_warp ? " or a __syncwarp()" : ""));
}

void SharedArray::unwritten(std::size_t i) const {
  fail(
      fmt::format("shared array '{}': element {} is read, which no thread of this block has "
                  "written before; write it "
                  "first, with a barrier between if another thread does",
                  name_, i));
}

void SharedArray::outside(std::size_t i) const {
  fail(fmt::format("shared array '{}': index {} is outside of its {} elements", name_,
                   static_cast<std::int64_t>(i), count_));
}

void SharedMemory::start_grid(std::size_t dynamic_bytes, std::size_t limit) {
  dynamic_bytes_ = dynamic_bytes;
  limit_ = limit;
  fixed_bytes_ = 0;
  used_ = 0;
}

SharedArray& SharedMemory::fixed(const void* site, const char* name, std::size_t count,
                                 std::size_t element) {
  SharedArray* known = find(site);
  if (known == nullptr) {
    fixed_bytes_ += count * element;
    if (fixed_bytes_ > kMostFixedBytes) {
      fail(
          fmt::format("shared array '{}' brings the kernel's arrays of fixed size to {} bytes; "
                      "they have at most {}, "
                      "the rest must be dynamic",
                      name, fixed_bytes_, kMostFixedBytes));
    }
    if (fixed_bytes_ + dynamic_bytes_ > limit_) {
      fail(
          fmt::format("shared array '{}' brings the block's shared memory to {} bytes ({} of them "
                      "dynamic), the "
                      "limit is {}",
                      name, fixed_bytes_ + dynamic_bytes_, dynamic_bytes_, limit_));
    }
    known = &add(site, name, count, element);
  }
  return in_this_block(*known);
}

SharedArray& SharedMemory::dynamic(const char* name, std::size_t element) {
  SharedArray* known = find(this);
  if (known == nullptr) known = &add(this, name, dynamic_bytes_ / element, element);
  if (known->element() != element) {
    fail(
        fmt::format("dynamic shared memory is taken as '{}' with elements of {} bytes and as '{}' "
                    "with {}; a kernel has "
                    "one such array",
                    known->name(), known->element(), name, element));
  }
  return in_this_block(*known);
}

SharedArray* SharedMemory::find(const void* site) {
  for (std::size_t i = 0; i < used_; ++i) {
    if (arrays_[i]->site() == site) return arrays_[i].get();
  }
  return nullptr;
}

SharedArray& SharedMemory::add(const void* site, const char* name, std::size_t count,
                               std::size_t element) {
  if (used_ == arrays_.size()) arrays_.push_back(std::make_unique<SharedArray>());
  SharedArray& array = *arrays_[used_++];
  array.declare(site, name, count, element);
  return array;
}

SharedArray& SharedMemory::in_this_block(SharedArray& array) {
  if (array.first_interval() != first_interval_) array.start_block(first_interval_);
  return array;
}

}  // namespace shardcheck::emu
