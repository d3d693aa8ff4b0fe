// SPDX-License-Identifier: Apache-2.0
// Private to candidates: how a step's tensors are named in a rank's file.
#pragma once

#include <string>

#include "sharded/step.hpp"

namespace shardcheck {

/// "prefill/", "prefill1/", "decode0/".
std::string step_prefix(const Step& step);

}  // namespace shardcheck
