// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "sharded/comm/dense_group.hpp"

namespace shardcheck {

/// What libshardcheck_nccl.so exports, as `extern "C" const LibraryModule shardcheck_library_module`.
struct LibraryModule {
  /// Must be kLibraryModuleVersion: a module of another build is refused, not tried.
  int version;
  /// Null and the reason in `why` if the library can't be used here at all. Never throws.
  std::shared_ptr<CollectiveLibrary> (*open)(std::string& why);
  /// One sentence about the library. Never throws.
  std::string (*describe)();
};
inline constexpr int kLibraryModuleVersion = 1;

/// NCCL; null and the reason in `why` if there is no module or no GPU.
std::shared_ptr<CollectiveLibrary> open_nccl(std::string& why);
std::string describe_nccl();

}  // namespace shardcheck
