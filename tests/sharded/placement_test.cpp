// SPDX-License-Identifier: Apache-2.0
// Placement rules of single ops, asked directly: what no plan of today's graphs can put before them.
#include <gtest/gtest.h>

#include <string>

#include "model/error.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/step_rules.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck {
namespace {

const Mesh kMesh{{{"x", 2}, {"y", 3}}};

Layout of_kind(Placement::Kind kind, std::int64_t features = 12) {
  Layout layout = Layout::replicated(features, kMesh);
  layout.placements[0] = {kind, Dim::features};
  if (kind == Placement::Kind::S)
    layout = Layout::sharded(kMesh, 0, Partition::balanced(features, 2));
  return layout;
}

class Rules {
 public:
  Rules() {
    linear_.path = "m";
    linear_.kind = ModuleKind::linear;
    linear_.out = 18;
    linear_.in = 12;
  }
  Module& module() { return linear_; }
  ModulePlacement& weight() { return weight_; }
  Placed place(const std::string& op, std::vector<Layout> inputs, Attributes attributes = {}) {
    const Node node{op, "m", {}, {"m"}, std::move(attributes)};
    return ops_.find(op).place({node, config_, kMesh, &linear_, &weight_, std::move(inputs)});
  }
  /// The first rule that is broken; empty if none.
  std::string rule(const std::string& op, std::vector<Layout> inputs, Attributes attributes = {}) {
    const Placed placed = place(op, std::move(inputs), std::move(attributes));
    EXPECT_NE(placed.violations.empty(), placed.outputs.empty());
    return placed.violations.empty() ? "" : placed.violations[0].rule;
  }

 private:
  Registry ops_ = builtin_ops();
  Config config_ = parse_config(config_text({}), "small.json");
  Module linear_;
  ModulePlacement weight_;
};

using Kind = Placement::Kind;

TEST(LinearRule, LetsAPartialSumThroughAnUncutWeightWithoutBias) {
  Rules rules;
  const Placed placed = rules.place("linear", {of_kind(Kind::P_sum)});
  ASSERT_EQ(placed.outputs.size(), 1u);
  EXPECT_EQ(placed.outputs[0].placements[0], Placement::partial());
  EXPECT_EQ(placed.outputs[0].features, 18);
  rules.module().has_bias = true;
  EXPECT_EQ(rules.rule("linear", {of_kind(Kind::P_sum)}), "bias_on_partial");
  rules.module().has_bias = false;
  EXPECT_EQ(rules.rule("linear", {of_kind(Kind::P_max)}), "partial_into_nonlinear");
}

TEST(LinearRule, RefusesPartialsWhereItsWeightIsCut) {
  Rules rules;
  rules.weight().cuts = {{0, true}};
  rules.weight().rows = Layout::sharded(kMesh, 0, Partition::balanced(18, 2)).owned;
  EXPECT_EQ(rules.rule("linear", {of_kind(Kind::P_sum)}), "partial_into_column_parallel");
  EXPECT_EQ(rules.rule("linear", {of_kind(Kind::R)}), "");
  rules.weight() = {};
  rules.weight().cuts = {{0, false}};
  rules.weight().cols = Layout::sharded(kMesh, 0, Partition::balanced(12, 2)).owned;
  EXPECT_EQ(rules.rule("linear", {of_kind(Kind::P_sum)}), "partial_into_row_parallel");
  const Placed placed = rules.place("linear", {of_kind(Kind::S)});
  ASSERT_EQ(placed.outputs.size(), 1u);
  EXPECT_EQ(placed.outputs[0].placements[0], Placement::partial());
  EXPECT_EQ(placed.outputs[0].placements[1], Placement::replicated());
}

TEST(LinearRule, KeepsAPartialOfAnotherAxis) {
  Rules rules;
  rules.weight().cuts = {{1, true}};
  rules.weight().rows = Layout::sharded(kMesh, 1, Partition::balanced(18, 3)).owned;
  const Placed placed = rules.place("linear", {of_kind(Kind::P_sum)});
  ASSERT_EQ(placed.outputs.size(), 1u);
  EXPECT_EQ(to_string(placed.outputs[0], kMesh), "x: P(sum), y: S(features)");
  EXPECT_EQ(placed.outputs[0].feature_ranges(4), (Ranges{{6, 12}}));
}

TEST(AddRule, AddsLikeToLike) {
  Rules rules;
  for (const Kind kind : {Kind::R, Kind::S, Kind::P_sum}) {
    const Placed placed = rules.place("add", {of_kind(kind), of_kind(kind)});
    ASSERT_EQ(placed.outputs.size(), 1u);
    EXPECT_EQ(placed.outputs[0], of_kind(kind));
  }
  EXPECT_EQ(rules.rule("add", {of_kind(Kind::P_max), of_kind(Kind::P_max)}),
            "partial_plus_replicated");
  EXPECT_EQ(rules.rule("add", {of_kind(Kind::R), of_kind(Kind::P_sum)}), "partial_plus_replicated");
  EXPECT_EQ(rules.rule("add", {of_kind(Kind::R), of_kind(Kind::S)}), "placements_differ");
  Layout other = of_kind(Kind::S);
  other.owned = Layout::sharded(kMesh, 0, Partition(12, {{{0, 5}}, {{5, 12}}})).owned;
  EXPECT_EQ(rules.rule("add", {of_kind(Kind::S), other}), "ranges_differ");
}

TEST(ElementwiseRule, RefusesPartialsOfEveryKind) {
  Rules rules;
  for (const Kind kind : {Kind::P_sum, Kind::P_max}) {
    EXPECT_EQ(rules.rule("unary", {of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("gate", {of_kind(Kind::R), of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("rms_norm", {of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("layer_norm", {of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("rope", {of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("cache", {of_kind(Kind::R), of_kind(kind)}), "partial_into_nonlinear");
    EXPECT_EQ(rules.rule("bias", {of_kind(kind)}), "bias_on_partial");
  }
  EXPECT_EQ(rules.rule("unary", {of_kind(Kind::S)}), "");
  EXPECT_EQ(rules.rule("bias", {of_kind(Kind::S)}), "");
}

TEST(ElementwiseRule, TheStepThatRepairsAMaximumIsAMaximum) {
  Rules rules;
  const Placed placed = rules.place("unary", {of_kind(Kind::P_max)});
  ASSERT_EQ(placed.violations.size(), 1u);
  EXPECT_EQ(placed.violations[0].fix, kRepairStep);
  const std::optional<CollectiveStep> step = step_between({Kind::P_max, Dim::features}, {}, "x");
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(to_string(*step), "all_reduce(max, x)");
  EXPECT_EQ(placed.violations[0].assumed, of_kind(Kind::R));
}

TEST(HeadNormRule, HeadsMayBeCutButNotCutThrough) {
  Rules rules;
  const Attributes two{{"head_dim", 2.0}, {"eps", 1e-6}}, four{{"head_dim", 4.0}, {"eps", 1e-6}};
  for (const Kind kind : {Kind::R, Kind::S}) {  // [0, 6) and [6, 12)
    const Placed placed = rules.place("head_norm", {of_kind(kind)}, two);
    ASSERT_EQ(placed.outputs.size(), 1u);
    EXPECT_EQ(placed.outputs[0], of_kind(kind));
  }
  EXPECT_EQ(rules.rule("head_norm", {of_kind(Kind::S)}, four), "head_is_cut");
  EXPECT_EQ(rules.rule("head_norm", {of_kind(Kind::P_sum)}, two), "partial_into_nonlinear");
  EXPECT_EQ(rules.rule("head_norm", {of_kind(Kind::P_max)}, two), "partial_into_nonlinear");
  for (const Dim rows : {Dim::tokens, Dim::sequences}) {
    Layout cut = of_kind(Kind::R);
    cut.placements[1] = Placement::sharded(rows);
    cut.row_axes = {1};
    const Placed placed = rules.place("head_norm", {cut}, two);
    ASSERT_EQ(placed.outputs.size(), 1u);
    EXPECT_EQ(placed.outputs[0], cut);
  }
}

TEST(SplitRule, TakesEachRanksPartOfTheSection) {
  Rules rules;
  Layout fused = of_kind(Kind::S);  // [0, 6) and [6, 12)
  const Placed placed = rules.place("split", {fused}, {{"begin", 4.0}, {"end", 9.0}});
  ASSERT_EQ(placed.outputs.size(), 1u);
  EXPECT_EQ(placed.outputs[0].features, 5);
  EXPECT_EQ(placed.outputs[0].feature_ranges(0), (Ranges{{0, 2}}));
  EXPECT_EQ(placed.outputs[0].feature_ranges(5), (Ranges{{2, 5}}));
}

TEST(Registry, FindsOpsByNameAndNamesTheNearest) {
  const Registry ops = builtin_ops();
  for (const std::string& name : ops.names()) EXPECT_EQ(ops.find(name).name(), name);
  EXPECT_EQ(ops.names().size(), 16u);
  try {
    ops.find("rmsnorm");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "no op is called \"rmsnorm\"; did you mean \"rms_norm\"?");
  }
}

}  // namespace
}  // namespace shardcheck
