// SPDX-License-Identifier: Apache-2.0
// Runs the tests if a device answers. Else they are skipped with the reason (exit 77, which ctest shows as skipped), or
// failed (exit 1) where SHARDCHECK_REQUIRE_GPU=1 says that there must be one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "kernels/device.hpp"
#include "tests/gpu/gpu_kind.hpp"

namespace {

constexpr int kSkipped = 77;

bool gpu_is_required() {
  const char* const value = std::getenv("SHARDCHECK_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const std::string kind = shardcheck::gpu_kind();
  const std::string device = shardcheck::builtin_devices().describe(kind);
  if (device.starts_with("none")) {
    fmt::print("{}: no device of kind {} answers: {}\n", gpu_is_required() ? "FAILED" : "SKIPPED",
               kind, device);
    if (!gpu_is_required()) return kSkipped;
    fmt::print(
        "SHARDCHECK_REQUIRE_GPU=1 says that there must be one; unset it to skip these tests.\n");
    return 1;
  }
  fmt::print("{}: {}\n", kind, device);
  return RUN_ALL_TESTS();
}
