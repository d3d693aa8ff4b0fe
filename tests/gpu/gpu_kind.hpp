// SPDX-License-Identifier: Apache-2.0
// Which device these tests are about.
#pragma once

#include <cstdlib>
#include <string>

namespace shardcheck {

/// "cuda"; SHARDCHECK_TEST_DEVICE names another kind (emu), to try these tests out on a machine without a GPU.
inline std::string gpu_kind() {
  const char* const kind = std::getenv("SHARDCHECK_TEST_DEVICE");
  return kind == nullptr ? "cuda" : kind;
}

}  // namespace shardcheck
