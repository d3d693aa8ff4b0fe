// SPDX-License-Identifier: Apache-2.0
// The bits of CpuFeatures: the levels x86-64-v2 to v4, as far as compilers use them in plain code.
#pragma once

#include <string_view>

#include "harness/cli/cpu_check.hpp"

namespace shardcheck::cpu {

inline constexpr CpuFeatures kSse42 = 1U << 0U, kPopcnt = 1U << 1U, kAvx = 1U << 2U,
                             kAvx2 = 1U << 3U, kFma = 1U << 4U, kBmi = 1U << 5U, kBmi2 = 1U << 6U,
                             kF16c = 1U << 7U, kLzcnt = 1U << 8U, kMovbe = 1U << 9U,
                             kAvx512f = 1U << 10U, kAvx512bw = 1U << 11U, kAvx512cd = 1U << 12U,
                             kAvx512dq = 1U << 13U, kAvx512vl = 1U << 14U;

/// By bit.
inline constexpr std::string_view kNames[] = {
    "SSE4.2", "POPCNT", "AVX",     "AVX2",     "FMA",      "BMI",      "BMI2",    "F16C",
    "LZCNT",  "MOVBE",  "AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"};

}  // namespace shardcheck::cpu
