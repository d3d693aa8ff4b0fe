// SPDX-License-Identifier: Apache-2.0
#include "kernels/emu/thread.hpp"

#include <fmt/format.h>

#include <string_view>

#include "model/error.hpp"

namespace shardcheck::emu {

std::string to_string(const uint3& index) {
  return fmt::format("({}, {}, {})", index.x, index.y, index.z);
}

std::string to_string(const std::source_location& place) {
  const std::string_view file = place.file_name();
  return fmt::format("{}:{}", file.substr(file.rfind('/') + 1), place.line());
}

std::string message(const uint3& thread, const std::string& what) {
  return fmt::format("kernel {}, block {}, thread {}: {}", current_kernel, to_string(blockIdx),
                     to_string(thread), what);
}

void fail(const std::string& what) {
  if (current_thread == nullptr) throw DeviceError(what + " (outside of a kernel)");
  throw DeviceError(message(threadIdx, what));
}

void fail_index(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  fail(fmt::format("element ({}, {}) is outside of a view of {} x {}", row, col, rows, cols));
}

}  // namespace shardcheck::emu
