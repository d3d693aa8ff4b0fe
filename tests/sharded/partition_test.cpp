// SPDX-License-Identifier: Apache-2.0
// Cuts of a dimension: balanced and chunked pieces, what is wrong with a list of ranges, cuts of cuts.
#include "sharded/partition.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>

namespace shardcheck {
namespace {

/// The slow twin of a list of ranges: every index in order.
std::vector<std::int64_t> indices(const Ranges& ranges) {
  std::vector<std::int64_t> all;
  for (const Range& range : ranges) {
    for (std::int64_t i = range.begin; i < range.end; ++i) all.push_back(i);
  }
  return all;
}

/// Disjoint ranges with gaps, in any order.
Ranges disjoint_ranges() {
  const auto lengths = *rc::gen::resize(
      6, rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 9)));
  Ranges ranges;
  std::int64_t at = *rc::gen::inRange(0, 4);
  for (const int length : lengths) {
    ranges.push_back({at, at + length});
    at += length + *rc::gen::inRange(0, 3);
  }
  for (std::size_t i = ranges.size(); i > 1; --i)
    std::swap(ranges[i - 1], ranges[*rc::gen::inRange<std::size_t>(0, i)]);
  return ranges;
}

/// Ranges inside [0, extent), disjoint and ascending.
Ranges inside(std::int64_t extent) {
  Ranges ranges;
  std::int64_t at = 0;
  while (at < extent) {
    const std::int64_t begin = *rc::gen::inRange(at, extent);
    const std::int64_t end = *rc::gen::inRange(begin, extent) + 1;
    ranges.push_back({begin, end});
    at = end + 1;  // a gap: adjacent ranges would be joined
  }
  return ranges;
}

TEST(Partition, GivesTheFirstRanksOneUnitMore) {
  const Partition heads = Partition::balanced(9 * 64, 4, 64);
  EXPECT_EQ(heads.of(0), (Ranges{{0, 192}}));
  EXPECT_EQ(heads.of(1), (Ranges{{192, 320}}));
  EXPECT_EQ(heads.of(2), (Ranges{{320, 448}}));
  EXPECT_EQ(heads.of(3), (Ranges{{448, 576}}));
  EXPECT_EQ(heads.extent(), 576);
  EXPECT_EQ(heads.ranks(), 4);
  EXPECT_EQ(heads.size(0), 192);
}

TEST(Partition, MayLeaveRanksWithNothing) {
  const Partition tokens = Partition::balanced(1, 4);
  EXPECT_EQ(tokens.of(0), (Ranges{{0, 1}}));
  for (const int rank : {1, 2, 3}) EXPECT_EQ(tokens.size(rank), 0) << rank;
  EXPECT_EQ(tokens.defect(), "");
  EXPECT_EQ(Partition::balanced(0, 3).defect(), "");
  EXPECT_EQ(Partition::chunked(0, 3).defect(), "");
}

TEST(Partition, ChunksAreOfOneSizeAndTheLastOnesShort) {
  const Partition vocabulary = Partition::chunked(257, 3);
  EXPECT_EQ(vocabulary.of(0), (Ranges{{0, 86}}));
  EXPECT_EQ(vocabulary.of(2), (Ranges{{172, 257}}));
  const Partition few = Partition::chunked(6, 4);  // pieces of 2: the fourth rank is left over
  EXPECT_EQ(few.of(2), (Ranges{{4, 6}}));
  EXPECT_EQ(few.size(3), 0);
  EXPECT_EQ(Partition::chunked(5 * 8, 2, 8).of(0), (Ranges{{0, 24}}));
}

RC_GTEST_PROP(PartitionProperty, BalancedCutsCoverOnceAndDifferByOneUnit, ()) {
  const std::int64_t unit = *rc::gen::inRange(1, 9);
  const std::int64_t units = *rc::gen::inRange(0, 60);
  const int ranks = *rc::gen::inRange(1, 18);
  const Partition cut = Partition::balanced(units * unit, ranks, unit);
  RC_ASSERT(cut.defect().empty());
  for (int rank = 0; rank < ranks; ++rank) {
    RC_ASSERT(cut.size(rank) == unit * (units / ranks + (rank < units % ranks ? 1 : 0)));
    RC_ASSERT(cut.of(rank).size() <= 1u);
  }
}

RC_GTEST_PROP(PartitionProperty, ChunkedCutsCoverOnceInPiecesOfTheCeiling, ()) {
  const std::int64_t unit = *rc::gen::inRange(1, 9);
  const std::int64_t units = *rc::gen::inRange(1, 60);
  const int ranks = *rc::gen::inRange(1, 18);
  const Partition cut = Partition::chunked(units * unit, ranks, unit);
  RC_ASSERT(cut.defect().empty());
  const std::int64_t piece = (units + ranks - 1) / ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t left = std::max<std::int64_t>(0, units - rank * piece);
    RC_ASSERT(cut.size(rank) == unit * std::min(piece, left));
  }
}

struct Defective {
  const char* what;
  std::vector<Ranges> per_rank;
  std::string once, overlapping;  // the messages without and with overlap_allowed
};

TEST(Partition, NamesTheFirstDefect) {
  const Defective cases[] = {
      {"good", {{{0, 4}, {6, 10}}, {{4, 6}}}, "", ""},
      {"any order", {{{6, 10}, {0, 4}}, {}, {{4, 6}}}, "", ""},
      {"gap", {{{0, 4}}, {{5, 10}}}, "no rank has [4,5)", "no rank has [4,5)"},
      {"gap at the start", {{{1, 10}}, {}}, "no rank has [0,1)", "no rank has [0,1)"},
      {"gap at the end", {{{0, 4}}, {{4, 9}}}, "no rank has [9,10)", "no rank has [9,10)"},
      {"nothing", {{}, {}}, "no rank has [0,10)", "no rank has [0,10)"},
      {"overlap", {{{0, 6}}, {{4, 10}}}, "ranks 0 and 1 both have [4,6)", ""},
      {"inside", {{{0, 10}}, {{2, 3}}}, "ranks 0 and 1 both have [2,3)", ""},
      {"outside",
       {{{0, 4}}, {{4, 11}}},
       "rank 1 has [4,11), outside [0,10)",
       "rank 1 has [4,11), outside [0,10)"},
      {"negative",
       {{{-1, 10}}},
       "rank 0 has [-1,10), outside [0,10)",
       "rank 0 has [-1,10), outside [0,10)"},
      {"backwards",
       {{{0, 10}, {7, 5}}},
       "rank 0 has [7,5), outside [0,10)",
       "rank 0 has [7,5), outside [0,10)"},
  };
  for (const Defective& given : cases) {
    const Partition cut(10, given.per_rank);
    EXPECT_EQ(cut.defect(), given.once) << given.what;
    EXPECT_EQ(cut.defect(true), given.overlapping) << given.what;
  }
}

TEST(Ranges, ArePrintedJoinedAndCounted) {
  EXPECT_EQ(to_string(Ranges{{0, 192}, {576, 640}}), "[0,192)+[576,640)");
  EXPECT_EQ(to_string(Ranges{}), "[)");
  EXPECT_EQ(total({{0, 192}, {576, 640}}), 256);
  EXPECT_EQ(total({}), 0);
  EXPECT_EQ(normalized({{6, 9}, {2, 2}, {0, 3}, {3, 5}, {8, 10}}), (Ranges{{0, 5}, {6, 10}}));
}

RC_GTEST_PROP(RangesProperty, NormalizedKeepsTheSetOfIndices, ()) {
  const Ranges ranges = disjoint_ranges();
  std::vector<std::int64_t> sorted = indices(ranges);
  std::sort(sorted.begin(), sorted.end());
  const Ranges result = normalized(ranges);
  RC_ASSERT(indices(result) == sorted);
  for (std::size_t i = 1; i < result.size(); ++i) RC_ASSERT(result[i - 1].end < result[i].begin);
}

RC_GTEST_PROP(RangesProperty, ComposePicksFromTheConcatenation, ()) {
  const Ranges whole = disjoint_ranges();
  const Ranges inner = inside(total(whole));
  const std::vector<std::int64_t> all = indices(whole);
  std::vector<std::int64_t> expected;
  for (const std::int64_t i : indices(inner)) expected.push_back(all[static_cast<std::size_t>(i)]);
  RC_ASSERT(indices(compose(whole, inner)) == expected);
}

RC_GTEST_PROP(RangesProperty, LocateIsTheInverseOfCompose, ()) {
  const Ranges whole = disjoint_ranges();
  const Ranges inner = inside(total(whole));
  RC_ASSERT(locate(whole, compose(whole, inner)) == inner);
}

RC_GTEST_PROP(RangesProperty, ComposeIsTheInverseOfLocate, ()) {
  const Ranges whole = normalized(disjoint_ranges());
  const Ranges asked = inside(40);  // of which `whole` may lack some
  const std::vector<std::int64_t> have = indices(whole);
  std::vector<std::int64_t> expected;
  for (const std::int64_t i : indices(asked)) {
    if (std::binary_search(have.begin(), have.end(), i)) expected.push_back(i);
  }
  const Ranges found = locate(whole, asked);
  RC_ASSERT(indices(compose(whole, found)) == expected);
  for (const Range& range : found) RC_ASSERT(range.begin >= 0 && range.end <= total(whole));
}

}  // namespace
}  // namespace shardcheck
