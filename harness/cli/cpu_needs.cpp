// SPDX-License-Identifier: Apache-2.0
// Compiled with the same -march as all code, so the compiler's own macros say what it may have used.
#include "harness/cli/cpu_features.hpp"

namespace shardcheck {

constexpr CpuFeatures kCpuFeaturesNeeded = 0
#ifdef __SSE4_2__
                                           | cpu::kSse42
#endif
#ifdef __POPCNT__
                                           | cpu::kPopcnt
#endif
#ifdef __AVX__
                                           | cpu::kAvx
#endif
#ifdef __AVX2__
                                           | cpu::kAvx2
#endif
#ifdef __FMA__
                                           | cpu::kFma
#endif
#ifdef __BMI__
                                           | cpu::kBmi
#endif
#ifdef __BMI2__
                                           | cpu::kBmi2
#endif
#ifdef __F16C__
                                           | cpu::kF16c
#endif
#ifdef __LZCNT__
                                           | cpu::kLzcnt
#endif
#ifdef __MOVBE__
                                           | cpu::kMovbe
#endif
#ifdef __AVX512F__
                                           | cpu::kAvx512f
#endif
#ifdef __AVX512BW__
                                           | cpu::kAvx512bw
#endif
#ifdef __AVX512CD__
                                           | cpu::kAvx512cd
#endif
#ifdef __AVX512DQ__
                                           | cpu::kAvx512dq
#endif
#ifdef __AVX512VL__
                                           | cpu::kAvx512vl
#endif
    ;

}  // namespace shardcheck
