// SPDX-License-Identifier: Apache-2.0
// What a step needs of a value on several axes, and how a point's list of steps is repaired.
#include "sharded/step_rules.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardcheck {
namespace {

using ::testing::HasSubstr;
using Kind = CollectiveStep::Kind;

const Mesh kMesh{{{"x", 2}, {"y", 3}}};
const Placement kPartial = Placement::partial(), kWhole{};

CollectiveStep step(Kind kind, std::vector<std::string> axes, PlanDim dim = PlanDim::features) {
  CollectiveStep step;
  step.kind = kind;
  step.axes = std::move(axes);
  step.dim = dim;
  return step;
}
Layout placed(Placement x, Placement y) {
  Layout layout = Layout::replicated(12, kMesh);
  layout.placements = {x, y};
  return layout;
}

TEST(PlaceStep, ASumOverTheWrongAxisIsTakenForTheRightOne) {
  const StepPlaced sum = place_step(step(Kind::all_reduce, {"x"}), {0}, placed(kWhole, kPartial),
                                    kMesh, 4);
  ASSERT_EQ(sum.misfits.size(), 1u);
  EXPECT_EQ(sum.misfits[0].axis, 0);
  EXPECT_THAT(sum.misfits[0].sentence, HasSubstr("partial on y, not on x"));
  EXPECT_EQ(to_string(*sum.instead), "all_reduce(sum, y)");
  EXPECT_EQ(sum.out, placed(kWhole, kWhole));
}

TEST(PlaceStep, ASumOverOneAxisTooManyIsTakenForTheSumOverTheOther) {
  const StepPlaced sum = place_step(step(Kind::all_reduce, {"x", "y"}), {0, 1},
                                    placed(kPartial, kWhole), kMesh, 4);
  ASSERT_EQ(sum.misfits.size(), 1u);
  EXPECT_EQ(sum.misfits[0].axis, 1);
  EXPECT_EQ(to_string(*sum.instead), "all_reduce(sum, x)");
  EXPECT_EQ(sum.out, placed(kWhole, kWhole));
}

TEST(PlaceStep, ASumOverOneOfTwoAxesFitsAndLeavesTheOther) {
  const StepPlaced sum = place_step(step(Kind::all_reduce, {"x"}), {0}, placed(kPartial, kPartial),
                                    kMesh, 4);
  EXPECT_TRUE(sum.misfits.empty());
  EXPECT_FALSE(sum.instead.has_value());
  EXPECT_EQ(sum.out, placed(kWhole, kPartial));
}

TEST(PlaceStep, AnAxisOfOneRankAsksForNothing) {
  const Mesh mesh{{{"x", 1}, {"y", 3}}};
  Layout layout = Layout::replicated(12, mesh);
  layout.placements[1] = kPartial;
  const StepPlaced sum = place_step(step(Kind::all_reduce, {"x", "y"}), {0, 1}, layout, mesh, 4);
  EXPECT_TRUE(sum.misfits.empty());
  EXPECT_FALSE(sum.out.any_partial());
}

TEST(PlaceStep, AShardThatIsSummedIsGathered) {
  Layout cut = Layout::sharded(kMesh, 0, Partition::balanced(12, 2));
  const StepPlaced sum = place_step(step(Kind::all_reduce, {"x"}), {0}, cut, kMesh, 4);
  EXPECT_EQ(to_string(*sum.instead), "all_gather(features, x)");
  EXPECT_EQ(sum.out, Layout::replicated(12, kMesh));
}

TEST(StepBetween, KnowsEveryWay) {
  const auto between = [](const Placement& from, const Placement& to) {
    const std::optional<CollectiveStep> found = step_between(from, to, "x");
    return found ? to_string(*found) : "";
  };
  const Placement features = Placement::sharded(Dim::features),
                  tokens = Placement::sharded(Dim::tokens);
  const Placement sequences = Placement::sharded(Dim::sequences),
                  maximum{Placement::Kind::P_max, Dim::features};
  EXPECT_EQ(between(kPartial, kWhole), "all_reduce(sum, x)");
  EXPECT_EQ(between(maximum, kWhole), "all_reduce(max, x)");
  EXPECT_EQ(between(kPartial, tokens), "reduce_scatter(sum, tokens, x)");
  EXPECT_EQ(between(kPartial, features), "reduce_scatter(sum, features, x)");
  EXPECT_EQ(between(tokens, kWhole), "all_gather(tokens, x)");
  EXPECT_EQ(between(sequences, kWhole), "all_gather(sequence, x)");
  EXPECT_EQ(between(kWhole, features), "slice(features, x)");
  EXPECT_EQ(between(tokens, features), "all_to_all(features, tokens, x)");
  EXPECT_EQ(between(kWhole, kWhole), "");
  EXPECT_EQ(between(kWhole, kPartial), "");
  EXPECT_EQ(between(maximum, tokens), "");
}

TEST(WithStep, JoinsWhatBelongsTogether) {
  const auto entry = [](std::vector<CollectiveStep> steps, const CollectiveStep& next) {
    return point_entry("m.out", with_step(std::move(steps), next, kMesh));
  };
  EXPECT_EQ(entry({}, step(Kind::all_reduce, {"x"})), "\"m.out\": \"all_reduce(sum, x)\"");
  EXPECT_EQ(entry({step(Kind::all_reduce, {"y"})}, step(Kind::all_reduce, {"x"})),
            "\"m.out\": \"all_reduce(sum, [x, y])\"");
  EXPECT_EQ(entry({step(Kind::slice, {"x"}, PlanDim::tokens)},
                  step(Kind::all_gather, {"x"}, PlanDim::tokens)),
            "\"m.out\": []");
  EXPECT_EQ(entry({step(Kind::reduce_scatter, {"x"}, PlanDim::tokens)},
                  step(Kind::all_gather, {"x"}, PlanDim::tokens)),
            "\"m.out\": \"all_reduce(sum, x)\"");
  EXPECT_EQ(entry({step(Kind::all_reduce, {"x"})}, step(Kind::slice, {"x"}, PlanDim::tokens)),
            "\"m.out\": [\"all_reduce(sum, x)\", \"slice(tokens, x)\"]");
}

}  // namespace
}  // namespace shardcheck
