// SPDX-License-Identifier: Apache-2.0
// The grid of ranks: numbering, coordinates, groups over one and several axes.
#include "sharded/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace shardcheck {
namespace {

const Mesh kGrid{{{"dp", 2}, {"cp", 3}, {"tp", 4}}};

TEST(Mesh, NumbersRanksWithTheLastAxisFastest) {
  EXPECT_EQ(kGrid.ranks(), 24);
  EXPECT_EQ(kGrid.coordinates(0), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(kGrid.coordinates(1), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(kGrid.coordinates(4), (std::vector<int>{0, 1, 0}));
  EXPECT_EQ(kGrid.coordinates(23), (std::vector<int>{1, 2, 3}));
  for (int rank = 0; rank < kGrid.ranks(); ++rank) {
    EXPECT_EQ(kGrid.rank_at(kGrid.coordinates(rank)), rank);
  }
}

TEST(Mesh, FindsAxesByName) {
  EXPECT_EQ(kGrid.axis_index("dp"), 0);
  EXPECT_EQ(kGrid.axis_index("tp"), 2);
  EXPECT_EQ(kGrid.axis_index("pp"), -1);
  EXPECT_EQ(to_string(kGrid), "dp=2,cp=3,tp=4");
  EXPECT_EQ(to_string(Mesh{{{"tp", 4}}}), "tp=4");
}

TEST(Mesh, GroupsAlongAxesFirstAxisOutermost) {
  EXPECT_EQ(kGrid.group(6, {2}), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(kGrid.group(6, {0}), (std::vector<int>{6, 18}));
  EXPECT_EQ(kGrid.group(1, {0, 1}), (std::vector<int>{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(kGrid.group(1, {1, 0}), (std::vector<int>{1, 13, 5, 17, 9, 21}));
  EXPECT_EQ(kGrid.group(6, {}), (std::vector<int>{6}));
  EXPECT_EQ(kGrid.group_size({0, 2}), 8);
  EXPECT_EQ(kGrid.group_size({}), 1);
}

TEST(Mesh, GroupsOfOneAxisSetAreTheSameForAllMembersAndCoverAllRanks) {
  for (const std::vector<int>& axes :
       {std::vector<int>{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {2, 0}, {0, 1, 2}}) {
    std::set<std::vector<int>> groups;
    for (int rank = 0; rank < kGrid.ranks(); ++rank) {
      const std::vector<int> group = kGrid.group(rank, axes);
      EXPECT_EQ(static_cast<int>(group.size()), kGrid.group_size(axes));
      EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
      groups.insert(group);
    }
    EXPECT_EQ(static_cast<int>(groups.size()) * kGrid.group_size(axes), kGrid.ranks());
  }
}

}  // namespace
}  // namespace shardcheck
