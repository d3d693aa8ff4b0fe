// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/access.hpp"

#include <algorithm>
#include <utility>

namespace shardcheck::emu {
namespace {

/// Rows that touch each other are one.
Access joined(Access access) {
  if (access.rows > 1 && access.pitch <= access.width) {
    access.width = (access.rows - 1) * access.pitch + access.width;
    access.rows = 1;
  }
  if (access.rows <= 1) access.pitch = access.width;
  return access;
}

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/// Is there a k in [low, high] so that a stretch of `width` bytes at distance `offset` + k pitch from another of
/// `other` bytes overlaps it?
bool meets(std::int64_t offset, std::int64_t pitch, std::int64_t low, std::int64_t high,
           std::uint64_t width, std::uint64_t other) {
  // -width < offset + k pitch < other
  const std::int64_t first = floor_div(-static_cast<std::int64_t>(width) - offset, pitch) + 1;
  const std::int64_t last = floor_div(static_cast<std::int64_t>(other) - offset - 1, pitch);
  return std::max(first, low) <= std::min(last, high);
}

std::int64_t distance(std::uintptr_t to, std::uintptr_t from) {
  return static_cast<std::int64_t>(to - from);
}

bool stretch_meets_rows(std::uintptr_t begin, std::uint64_t width, const Access& rows) {
  return meets(distance(rows.begin, begin), static_cast<std::int64_t>(rows.pitch), 0,
               static_cast<std::int64_t>(rows.rows) - 1, rows.width, width);
}

}  // namespace

Access access_to(const void* pointer, std::uint64_t bytes, Use use) {
  return {reinterpret_cast<std::uintptr_t>(pointer), bytes, 1, bytes, use};
}

Access access_to_rows(const void* pointer, std::uint64_t width, std::uint64_t height,
                      std::uint64_t pitch, Use use) {
  return joined({reinterpret_cast<std::uintptr_t>(pointer), width, height, pitch, use});
}

void append_matrix(const void* pointer, std::size_t element_bytes, std::int64_t rows,
                   std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride, Use use,
                   std::vector<Access>& accesses) {
  if (rows <= 0 || cols <= 0) return;
  const auto size = static_cast<std::int64_t>(element_bytes);
  auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  struct Dimension {
    std::int64_t count, stride;  // elements, bytes
  };
  Dimension inner{cols, col_stride * size}, outer{rows, row_stride * size};
  for (Dimension* dimension : {&inner, &outer}) {
    if (dimension->count == 1 || dimension->stride == 0) *dimension = {1, 0};
    if (dimension->stride < 0) {
      begin -= static_cast<std::uintptr_t>(-dimension->stride * (dimension->count - 1));
      dimension->stride = -dimension->stride;
    }
  }
  if (outer.count > 1 && (inner.count == 1 || outer.stride < inner.stride)) std::swap(inner, outer);
  if (inner.count == 1 || inner.stride == size) {
    const auto width = static_cast<std::uint64_t>(inner.count * size);
    accesses.push_back(joined({begin, width, static_cast<std::uint64_t>(outer.count),
                               static_cast<std::uint64_t>(outer.stride), use}));
    return;
  }
  if (outer.count > inner.count) std::swap(inner, outer);
  for (std::int64_t i = 0; i < outer.count; ++i) {
    accesses.push_back(joined({begin + static_cast<std::uintptr_t>(i * outer.stride), element_bytes,
                               static_cast<std::uint64_t>(inner.count),
                               static_cast<std::uint64_t>(inner.stride), use}));
  }
}

bool overlap(const Access& a, const Access& b) {
  if (a.end() <= b.begin || b.end() <= a.begin) return false;
  if (a.rows == 1) return stretch_meets_rows(a.begin, a.width, b);
  if (b.rows == 1) return stretch_meets_rows(b.begin, b.width, a);
  if (a.pitch == b.pitch) {
    return meets(distance(b.begin, a.begin), static_cast<std::int64_t>(a.pitch),
                 1 - static_cast<std::int64_t>(a.rows), static_cast<std::int64_t>(b.rows) - 1,
                 b.width, a.width);
  }
  const auto& [few, many] = a.rows <= b.rows ? std::pair<const Access&, const Access&>(a, b)
                                             : std::pair<const Access&, const Access&>(b, a);
  for (std::uint64_t i = 0; i < few.rows; ++i) {
    if (stretch_meets_rows(few.begin + i * few.pitch, few.width, many)) return true;
  }
  return false;
}

bool covers(const Access& outer, const Access& inner) {
  if (inner.begin < outer.begin || inner.end() > outer.end()) return false;
  if (outer.rows == 1) return true;
  if (inner.rows > 1 && inner.pitch % outer.pitch != 0) return false;
  const std::uint64_t in_row = (inner.begin - outer.begin) % outer.pitch;
  return in_row + inner.width <= outer.width;
}

}  // namespace shardcheck::emu
