// SPDX-License-Identifier: Apache-2.0
// Can this CPU run what the compiler made? An illegal instruction tells a user nothing, so main() asks first.
#pragma once

#include <cstdint>
#include <string>

namespace shardcheck {

/// Instruction sets, one bit each.
using CpuFeatures = std::uint32_t;

/// What -march let the compiler use. Only data: nothing of the file that holds it runs.
extern const CpuFeatures kCpuFeaturesNeeded;

/// What this CPU and its operating system offer.
CpuFeatures cpu_features_present();

/// Empty if everything needed is present; else one sentence with the missing instruction sets and the remedy.
/// main() calls this before anything else, prints the sentence and ends with exit code 2.
std::string cpu_problem(CpuFeatures needed, CpuFeatures present);

}  // namespace shardcheck
