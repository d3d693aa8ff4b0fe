// SPDX-License-Identifier: Apache-2.0
// The device's memory: a reserved range of addresses that the host can't touch except while it is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace shardcheck::emu {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  /// Reserves addresses; memory is used as it is first touched. Throws DeviceError if there is no such range.
  explicit Arena(std::size_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Lets the memory be touched for as long as the object lives.
  class Opened {
   public:
    explicit Opened(Arena& arena) : arena_(arena) { arena_.protect(true); }
    ~Opened() { arena_.protect(false); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    Arena& arena_;
  };

  /// The lowest free range, multiples of kAlignment; null if none is large enough. What lies there is not touched.
  std::byte* allocate(std::size_t bytes);
  /// Gives back what allocate gave.
  void release(std::byte* pointer);
  bool contains(const void* pointer) const;

  std::size_t capacity() const { return capacity_; }
  std::size_t in_use() const { return in_use_; }

 private:
  void protect(bool open);

  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::size_t capacity_;
  std::size_t in_use_ = 0;
  std::size_t reached_ = 0;                   // no byte from here on was ever given out
  std::map<std::size_t, std::size_t> free_;   // size by offset; neighbours are joined
  std::map<std::size_t, std::size_t> taken_;  // size by offset
};

}  // namespace shardcheck::emu
