// SPDX-License-Identifier: Apache-2.0
#include "harness/wiring_parcel.hpp"

#include <gtest/gtest.h>

#include "model/error.hpp"

namespace shardcheck {
namespace {

TEST(WiringParcel, KeepsEveryField) {
  const std::vector<WiringFault> faults{
      {"layers.0.mlp.down_proj.weight", 7, Phase::decode, 3, {1, 2}, "differs", {0}},
      {"norm", 0, Phase::prefill, 0, {}, "", {}}};
  const std::vector<WiringFault> read = unpack_faults(pack_faults(faults));
  ASSERT_EQ(read.size(), faults.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].tap, faults[i].tap);
    EXPECT_EQ(read[i].order, faults[i].order);
    EXPECT_EQ(read[i].phase, faults[i].phase);
    EXPECT_EQ(read[i].step, faults[i].step);
    EXPECT_EQ(read[i].ranks, faults[i].ranks);
    EXPECT_EQ(read[i].sentence, faults[i].sentence);
    EXPECT_EQ(read[i].against, faults[i].against);
  }
  EXPECT_TRUE(unpack_faults(pack_faults({})).empty());
}

TEST(WiringParcel, NoticesMissingBytes) {
  const std::string bytes = pack_faults({{"norm", 0, Phase::prefill, 0, {1}, "differs", {}}});
  EXPECT_THROW(unpack_faults(std::string_view(bytes).substr(0, bytes.size() - 1)), CommError);
}

}  // namespace
}  // namespace shardcheck
