// SPDX-License-Identifier: Apache-2.0
// The bytes that a task touches: equal rows at equal distances, which is what a strided view is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardcheck::emu {

/// What a task does with bytes. All but reading is in conflict with whatever else is done with them.
enum class Use { reads, writes, allocates, frees };

struct Access {
  std::uintptr_t begin = 0;  // of the first row
  std::uint64_t width = 0;   // bytes of a row, all of them touched
  std::uint64_t rows = 0;
  std::uint64_t pitch = 0;  // from row to row; more than width, or one row
  Use use = Use::reads;

  bool empty() const { return width == 0 || rows == 0; }
  std::uintptr_t end() const { return begin + (rows - 1) * pitch + width; }
};

/// `bytes` bytes from `pointer` on.
Access access_to(const void* pointer, std::uint64_t bytes, Use use);

/// `height` rows of `width` bytes.
Access access_to_rows(const void* pointer, std::uint64_t width, std::uint64_t height,
                      std::uint64_t pitch, Use use);

/// Elements of a strided matrix, exactly; strides in elements, of any sign, 0 included. Appends more than one access
/// only where neither rows nor columns lie dense.
void append_matrix(const void* pointer, std::size_t element_bytes, std::int64_t rows,
                   std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride, Use use,
                   std::vector<Access>& accesses);

/// Is there a byte in both? Precondition: neither is empty.
bool overlap(const Access& a, const Access& b);

/// Is every byte of `inner` in `outer`? May say no although it is so.
bool covers(const Access& outer, const Access& inner);

}  // namespace shardcheck::emu
