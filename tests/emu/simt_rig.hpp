// SPDX-License-Identifier: Apache-2.0
// Runs a kernel on the CPU in many orders of its threads.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/view.cuh"
#include "kernels/emu/block_runner.hpp"
#include "model/error.hpp"

namespace shardcheck::gpu {

/// In order, and 24 permutations.
inline std::vector<std::uint64_t> order_seeds() {
  std::vector<std::uint64_t> seeds = {0};
  for (std::uint64_t i = 1; i <= 24; ++i) seeds.push_back(i * 0x9E3779B97F4A7C15u);
  return seeds;
}

/// Host memory as a kernel's view.
template <typename T>
View<T> view_of(std::vector<T>& values, std::int64_t rows, std::int64_t cols) {
  EXPECT_EQ(static_cast<std::int64_t>(values.size()), rows * cols);
  return {values.data(), rows, cols, cols, 1};
}
template <typename T>
View<T> view_of(std::vector<T>& values) {
  return view_of(values, 1, static_cast<std::int64_t>(values.size()));
}

/// What the DeviceError says that running `body` ends in; "" if it ends well.
inline std::string error_of(const emu::Grid& grid, const emu::RunOptions& options,
                            const std::function<void()>& body) {
  try {
    emu::run_grid(grid, options, body);
    return "";
  } catch (const DeviceError& e) {
    return e.what();
  }
}

/// In every order `body` ends in a DeviceError that contains all of `parts`.
inline void expect_fault(const emu::Grid& grid, const std::function<void()>& body,
                         const std::vector<std::string>& parts) {
  for (const std::uint64_t seed : order_seeds()) {
    const std::string error = error_of(grid, {.order_seed = seed}, body);
    ASSERT_NE(error, "") << "not caught with order seed " << seed;
    for (const std::string& part : parts) {
      ASSERT_NE(error.find(part), std::string::npos)
          << "order seed " << seed << ": " << error << "\n  lacks " << part;
    }
  }
}

}  // namespace shardcheck::gpu
