// SPDX-License-Identifier: Apache-2.0
// Which GPUs can run what was compiled.
#pragma once

#include <string_view>

namespace shardcheck::gpu {

/// True if a GPU of this compute capability (90 for 9.0) can run code compiled for `architectures`, as CMake names them:
/// "80-real,90-real,100". Machine code (NN or NN-real) runs on the same major version from that minor on; PTX (NN or
/// NN-virtual) is compiled by the driver on any GPU from NN on. A suffix a or f (90a) ties code to that very version.
/// Words without a number (all, native) may mean anything and are believed.
bool runs_on(int capability, std::string_view architectures);

}  // namespace shardcheck::gpu
