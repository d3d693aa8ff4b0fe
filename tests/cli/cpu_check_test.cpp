// SPDX-License-Identifier: Apache-2.0
#include "harness/cli/cpu_check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "harness/cli/cpu_features.hpp"

namespace shardcheck {
namespace {

using testing::HasSubstr;

TEST(CpuCheck, ThisTestRunsSoItsCpuIsGoodEnough) {
  EXPECT_EQ(cpu_problem(kCpuFeaturesNeeded, cpu_features_present()), "");
}

TEST(CpuCheck, NeedsWhatTheCompilerWasAllowedToUse) {
#ifdef __AVX2__
  EXPECT_NE(kCpuFeaturesNeeded & cpu::kAvx2, 0U);
#else
  EXPECT_EQ(kCpuFeaturesNeeded & cpu::kAvx2, 0U);
#endif
}

TEST(CpuCheck, NamesEachMissingFeature) {
  for (unsigned bit = 0; bit < std::size(cpu::kNames); ++bit) {
    const CpuFeatures all = (1U << std::size(cpu::kNames)) - 1U;
    const std::string problem = cpu_problem(all, all & ~(1U << bit));
    EXPECT_THAT(problem, HasSubstr("lacks " + std::string(cpu::kNames[bit]) + ";"));
    EXPECT_THAT(problem, HasSubstr("-DSHARDCHECK_ARCH=native"));
  }
  EXPECT_THAT(cpu_problem(cpu::kAvx2 | cpu::kFma | cpu::kPopcnt, cpu::kPopcnt),
              HasSubstr("lacks AVX2, FMA;"));
}

TEST(CpuCheck, WhatIsNotNeededMayBeMissing) {
  EXPECT_EQ(cpu_problem(cpu::kSse42, cpu::kSse42 | cpu::kAvx), "");
}

}  // namespace
}  // namespace shardcheck
