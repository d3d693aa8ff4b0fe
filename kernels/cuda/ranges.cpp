// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/ranges.hpp"

#if defined(SHARDCHECK_EMU)

namespace shardcheck::gpu {

NamedRange named_range(std::string_view) { return NamedRange(nullptr); }

}  // namespace shardcheck::gpu

#else

#include <nvtx3/nvToolsExt.h>

#include <string>

namespace shardcheck::gpu {

NamedRange named_range(std::string_view name) {
  nvtxRangePushA(std::string(name).c_str());
  return NamedRange([] { nvtxRangePop(); });
}

}  // namespace shardcheck::gpu

#endif
