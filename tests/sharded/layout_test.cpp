// SPDX-License-Identifier: Apache-2.0
// Where the elements of a value are: cuts by one and two axes, tokens, and how collectives change a layout.
#include "sharded/layout.hpp"

#include <gtest/gtest.h>

#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

const Mesh kLine{{{"tp", 4}}};
const Mesh kGrid{{{"x", 2}, {"y", 3}}};

TEST(Layout, ReplicatedAndPartialValuesAreWholeOnEveryRank) {
  for (const Layout& layout : {Layout::replicated(10, kGrid), Layout::partial(10, kGrid, 1)}) {
    for (int rank = 0; rank < kGrid.ranks(); ++rank) {
      EXPECT_EQ(layout.feature_ranges(rank), (Ranges{{0, 10}}));
      EXPECT_EQ(layout.local_features(rank), 10);
      EXPECT_EQ(layout.token_ranges(kGrid, rank, 7), (Ranges{{0, 7}}));
    }
  }
  EXPECT_FALSE(Layout::replicated(10, kGrid).any_partial());
  EXPECT_TRUE(Layout::partial(10, kGrid, 1).any_partial());
}

TEST(Layout, OneAxisCutsFeaturesAndTheOtherRepeatsThem) {
  const Layout layout = Layout::sharded(kGrid, 1, Partition::balanced(10, 3));
  EXPECT_EQ(layout.features, 10);
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(layout.feature_ranges(rank), Partition::balanced(10, 3).of(rank % 3)) << rank;
  }
  EXPECT_EQ(to_string(layout, kGrid), "x: R, y: S(features)");
  EXPECT_EQ(to_string(Layout::sharded(kLine, 0, Partition::balanced(10, 4)), kLine), "S(features)");
  EXPECT_EQ(to_string(Layout::partial(10, kLine, 0), kLine), "P(sum)");
}

TEST(Layout, CutsTokensAnewForEveryCountTheFirstAxisOutside) {
  Layout layout = Layout::replicated(10, kGrid);
  layout.placements = {Placement::sharded(Dim::tokens), Placement::sharded(Dim::tokens)};
  layout.token_axes = {0, 1};
  // 7 tokens: 4 + 3 by x, then 2 + 1 + 1 and 1 + 1 + 1 by y.
  const std::vector<Ranges> seven{{{0, 2}}, {{2, 3}}, {{3, 4}}, {{4, 5}}, {{5, 6}}, {{6, 7}}};
  const std::vector<Ranges> one{{{0, 1}}, {}, {}, {}, {}, {}};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(layout.token_ranges(kGrid, rank, 7), seven[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(layout.token_ranges(kGrid, rank, 1), one[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(total(layout.token_ranges(kGrid, rank, 0)), 0) << rank;
  }
  layout.token_axes = {1, 0};  // 7 tokens: 3 + 2 + 2 by y, then by x
  EXPECT_EQ(layout.token_ranges(kGrid, 0, 7), (Ranges{{0, 2}}));
  EXPECT_EQ(layout.token_ranges(kGrid, 3, 7), (Ranges{{2, 3}}));
  EXPECT_EQ(layout.token_ranges(kGrid, 4, 7), (Ranges{{4, 5}}));
}

TEST(Layout, PlacementsComparePartsThatMatter) {
  Placement partial = Placement::partial();
  partial.dim = Dim::tokens;  // means nothing for a partial
  EXPECT_EQ(partial, Placement::partial());
  EXPECT_FALSE(Placement::sharded(Dim::tokens) == Placement::sharded(Dim::features));
  EXPECT_EQ(to_string(Placement::sharded(Dim::tokens)), "S(tokens)");
  EXPECT_EQ(to_string(Placement{Placement::Kind::P_max, Dim::features}), "P(max)");
}

TEST(Layout, SplittingTwiceAndGatheringTwiceIsTheIdentity) {
  const Layout whole = Layout::replicated(11, kGrid);
  const Layout outer = split_features(whole, kGrid, {0}, 1);  // 6 + 5
  EXPECT_EQ(outer.feature_ranges(0), (Ranges{{0, 6}}));
  EXPECT_EQ(outer.feature_ranges(5), (Ranges{{6, 11}}));
  const Layout both = split_features(outer, kGrid, {1}, 1);  // 2 + 2 + 2 and 2 + 2 + 1
  EXPECT_EQ(both.feature_ranges(2), (Ranges{{4, 6}}));
  EXPECT_EQ(both.feature_ranges(5), (Ranges{{10, 11}}));
  EXPECT_EQ(gathered_features(both, kGrid, {1}), outer);
  EXPECT_EQ(gathered_features(outer, kGrid, {0}), whole);
  EXPECT_EQ(gathered_features(both, kGrid, {0, 1}), whole);
  EXPECT_EQ(assume_replicated(outer, kGrid, 0), whole);
  // Gathering the outer axis alone leaves each rank two stretches.
  EXPECT_EQ(gathered_features(both, kGrid, {0}).feature_ranges(1), (Ranges{{2, 4}, {8, 10}}));
}

TEST(Layout, OneGroupOverTwoAxesCutsInItsOwnOrder) {
  const Layout both = split_features(Layout::replicated(12, kGrid), kGrid, {0, 1}, 1);
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(both.feature_ranges(rank), (Ranges{{2 * rank, 2 * rank + 2}}));
  }
  EXPECT_EQ(to_string(both, kGrid), "x: S(features), y: S(features)");
  const Layout heads = split_features(Layout::replicated(5 * 8, kLine), kLine, {0}, 8);
  EXPECT_EQ(heads.feature_ranges(0), (Ranges{{0, 16}}));
  EXPECT_EQ(heads.feature_ranges(3), (Ranges{{32, 40}}));
  EXPECT_TRUE(on_boundaries(heads, kLine, 8));
  EXPECT_FALSE(on_boundaries(heads, kLine, 16));
}

}  // namespace
}  // namespace shardcheck
