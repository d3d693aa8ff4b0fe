// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/architectures.hpp"

#include <gtest/gtest.h>

namespace shardcheck::gpu {
namespace {

TEST(Architectures, MachineCodeRunsOnItsMajorVersionFromItsMinorOn) {
  EXPECT_TRUE(runs_on(80, "80-real"));
  EXPECT_TRUE(runs_on(86, "80-real"));
  EXPECT_FALSE(runs_on(80, "86-real"));
  EXPECT_FALSE(runs_on(75, "80-real"));
  EXPECT_FALSE(runs_on(90, "80-real"));
  EXPECT_TRUE(runs_on(103, "100-real"));
  EXPECT_FALSE(runs_on(120, "100-real"));
}

TEST(Architectures, PtxRunsOnAllLaterOnes) {
  EXPECT_TRUE(runs_on(120, "100"));
  EXPECT_TRUE(runs_on(120, "80-virtual"));
  EXPECT_FALSE(runs_on(75, "80-virtual"));
  EXPECT_FALSE(runs_on(90, "100"));
}

TEST(Architectures, OneOfAListIsEnough) {
  for (const int capability : {80, 86, 89, 90, 100, 103, 120}) {
    EXPECT_TRUE(runs_on(capability, "80-real,90-real,100")) << capability;
  }
  EXPECT_FALSE(runs_on(75, "80-real,90-real,100"));
  EXPECT_FALSE(runs_on(80, "90-real"));
  EXPECT_FALSE(runs_on(90, ""));
}

TEST(Architectures, SuffixesTieCodeToOneVersionAndWordsAreBelieved) {
  EXPECT_TRUE(runs_on(90, "90a-real"));
  EXPECT_FALSE(runs_on(100, "90a"));
  EXPECT_TRUE(runs_on(86, "native"));
  EXPECT_TRUE(runs_on(86, "all-major"));
}

}  // namespace
}  // namespace shardcheck::gpu
