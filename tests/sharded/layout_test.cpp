// SPDX-License-Identifier: Apache-2.0
// Where the elements of a value are: cuts by one and two axes, tokens, and how collectives change a layout.
#include "sharded/layout.hpp"

#include <gtest/gtest.h>

#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

const Mesh kLine{{{"tp", 4}}};
const Mesh kGrid{{{"x", 2}, {"y", 3}}};

/// One sequence of n tokens.
Step tokens(std::int64_t n) {
  Step step;
  step.sequences = {{0, 0, n}};
  step.ids.resize(static_cast<std::size_t>(n));
  return step;
}

TEST(Layout, ReplicatedAndPartialValuesAreWholeOnEveryRank) {
  for (const Layout& layout : {Layout::replicated(10, kGrid), Layout::partial(10, kGrid, 1)}) {
    for (int rank = 0; rank < kGrid.ranks(); ++rank) {
      EXPECT_EQ(layout.feature_ranges(rank), (Ranges{{0, 10}}));
      EXPECT_EQ(layout.local_features(rank), 10);
      EXPECT_EQ(layout.row_ranges(kGrid, rank, tokens(7)), (Ranges{{0, 7}}));
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
  layout.row_axes = {0, 1};
  // 7 tokens: 4 + 3 by x, then 2 + 1 + 1 and 1 + 1 + 1 by y.
  const std::vector<Ranges> seven{{{0, 2}}, {{2, 3}}, {{3, 4}}, {{4, 5}}, {{5, 6}}, {{6, 7}}};
  const std::vector<Ranges> one{{{0, 1}}, {}, {}, {}, {}, {}};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(layout.row_ranges(kGrid, rank, tokens(7)), seven[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(layout.row_ranges(kGrid, rank, tokens(1)), one[static_cast<std::size_t>(rank)]) << rank;
    EXPECT_EQ(total(layout.row_ranges(kGrid, rank, tokens(0))), 0) << rank;
  }
  layout.row_axes = {1, 0};  // 7 tokens: 3 + 2 + 2 by y, then by x
  EXPECT_EQ(layout.row_ranges(kGrid, 0, tokens(7)), (Ranges{{0, 2}}));
  EXPECT_EQ(layout.row_ranges(kGrid, 3, tokens(7)), (Ranges{{2, 3}}));
  EXPECT_EQ(layout.row_ranges(kGrid, 4, tokens(7)), (Ranges{{4, 5}}));
}

Layout cut_rows(const Mesh& mesh, std::vector<std::pair<int, Dim>> cuts) {
  Layout layout = Layout::replicated(10, mesh);
  for (const auto& [axis, dim] : cuts) {
    layout.placements[static_cast<std::size_t>(axis)] = Placement::sharded(dim);
    layout.row_axes.push_back(axis);
  }
  return layout;
}

Step batch(std::vector<StepSequence> parts) {
  Step step;
  step.sequences = std::move(parts);
  for (const StepSequence& part : step.sequences)
    step.ids.resize(step.ids.size() + static_cast<std::size_t>(part.count));
  return step;
}

TEST(Layout, GivesEverySequenceOneHomeWhateverTheStep) {
  const Layout layout = cut_rows(kLine, {{0, Dim::sequences}});
  EXPECT_EQ(to_string(layout, kLine), "S(sequence)");
  const Step first = batch({{0, 0, 3}, {1, 0, 2}, {4, 0, 1}, {5, 0, 0}, {7, 0, 2}});
  EXPECT_EQ(layout.row_ranges(kLine, 0, first), (Ranges{{0, 3}, {5, 6}}));
  EXPECT_EQ(layout.row_ranges(kLine, 1, first), (Ranges{{3, 5}}));
  EXPECT_EQ(layout.row_ranges(kLine, 2, first), Ranges{});
  EXPECT_EQ(layout.row_ranges(kLine, 3, first), (Ranges{{6, 8}}));
  const Step later = batch({{7, 2, 1}, {4, 1, 1}});
  EXPECT_EQ(layout.row_ranges(kLine, 0, later), (Ranges{{1, 2}}));
  EXPECT_EQ(layout.row_ranges(kLine, 3, later), (Ranges{{0, 1}}));
  EXPECT_TRUE(layout.holds_sequence(kLine, 3, 7));
  EXPECT_FALSE(layout.holds_sequence(kLine, 0, 7));
}

TEST(Layout, DealsSequencesOutOverTwoAxesInTurn) {
  const Layout layout = cut_rows(kGrid, {{0, Dim::sequences}, {1, Dim::sequences}});
  for (std::int64_t sequence = 0; sequence < 12; ++sequence) {
    int homes = 0;
    for (int rank = 0; rank < 6; ++rank) {
      const bool home = rank / 3 == sequence % 2 && rank % 3 == sequence / 2 % 3;
      EXPECT_EQ(layout.holds_sequence(kGrid, rank, sequence), home) << sequence << " on " << rank;
      const Step step = batch({{sequence, 4, 2}});
      EXPECT_EQ(layout.row_ranges(kGrid, rank, step), home ? (Ranges{{0, 2}}) : Ranges{});
      homes += home ? 1 : 0;
    }
    EXPECT_EQ(homes, 1);
  }
}

TEST(Layout, CutsTheTokensOfARanksOwnSequences) {
  const Layout layout = cut_rows(kGrid, {{0, Dim::sequences}, {1, Dim::tokens}});
  // Sequences 0 and 2 are at home on x 0: rows 0 to 2 and 4, 5; five rows by y are 2 + 2 + 1.
  const Step step = batch({{0, 0, 3}, {1, 0, 1}, {2, 0, 2}});
  EXPECT_EQ(layout.row_ranges(kGrid, 0, step), (Ranges{{0, 2}}));
  EXPECT_EQ(layout.row_ranges(kGrid, 1, step), (Ranges{{2, 3}, {4, 5}}));
  EXPECT_EQ(layout.row_ranges(kGrid, 2, step), (Ranges{{5, 6}}));
  EXPECT_EQ(layout.row_ranges(kGrid, 3, step), (Ranges{{3, 4}}));
  EXPECT_EQ(total(layout.row_ranges(kGrid, 4, step)), 0);
}

TEST(Layout, KeepsThePositionsWhoseRowsARankHadLast) {
  const Step prompt = batch({{0, 0, 6}, {1, 0, 3}}), chunk = batch({{1, 3, 4}}), one = batch({{0, 6, 1}});
  const std::vector<const Step*> steps{&prompt, &chunk, &one};
  const Layout tokens_cut = cut_rows(kLine, {{0, Dim::tokens}});
  // 9 rows are 3 + 2 + 2 + 2, 4 rows are 1 each, 1 row is the first rank's.
  const std::vector<Ranges> of_0{{{0, 3}, {6, 7}}, {{3, 5}}, {{5, 6}}, {}};
  const std::vector<Ranges> of_1{{{3, 4}}, {{4, 5}}, {{0, 1}, {5, 6}}, {{1, 3}, {6, 7}}};
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(tokens_cut.kept_positions(kLine, rank, steps, 0), of_0[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(tokens_cut.kept_positions(kLine, rank, steps, 1), of_1[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(Layout::replicated(10, kLine).kept_positions(kLine, rank, steps, 1), (Ranges{{0, 7}}));
  }
  // What attention may read in the last step: 7 positions of sequence 0, the last 4 in a window.
  EXPECT_EQ(tokens_cut.cache_ranges(kLine, 0, steps, 0), (Ranges{{0, 3}, {6, 7}}));
  EXPECT_EQ(tokens_cut.cache_ranges(kLine, 1, steps, 4), (Ranges{{0, 2}}));
  EXPECT_EQ(tokens_cut.cache_ranges(kLine, 0, steps, 4), (Ranges{{3, 4}}));
  const Layout homes = cut_rows(kLine, {{0, Dim::sequences}});
  EXPECT_EQ(homes.kept_positions(kLine, 1, steps, 1), (Ranges{{0, 7}}));
  EXPECT_EQ(homes.kept_positions(kLine, 0, steps, 1), Ranges{});
  const Step both = batch({{1, 7, 1}, {0, 7, 1}});
  const std::vector<const Step*> all{&prompt, &chunk, &one, &both};
  EXPECT_EQ(homes.cache_ranges(kLine, 1, all, 0), (Ranges{{0, 8}}));
  EXPECT_EQ(homes.cache_ranges(kLine, 0, all, 0), (Ranges{{8, 16}}));
  EXPECT_EQ(total(homes.cache_ranges(kLine, 2, all, 0)), 0);
}

TEST(Layout, APositionWrittenAgainBelongsToWhoWroteItLast) {
  const Step prompt = batch({{0, 0, 8}}), again = batch({{0, 4, 4}});
  const std::vector<const Step*> steps{&prompt, &again};
  const Layout layout = cut_rows(kLine, {{0, Dim::tokens}});
  const std::vector<Ranges> kept{{{0, 2}, {4, 5}}, {{2, 4}, {5, 6}}, {{6, 7}}, {{7, 8}}};
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(layout.kept_positions(kLine, rank, steps, 0), kept[static_cast<std::size_t>(rank)]);
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
