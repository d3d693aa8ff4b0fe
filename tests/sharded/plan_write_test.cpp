// SPDX-License-Identifier: Apache-2.0
// A written plan is read as the same plan.
#include "sharded/plan_write.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "model/shipped.hpp"

namespace shardcheck {
namespace {

using ::testing::HasSubstr;

template <typename Value>
Value one_of(std::initializer_list<Value> values) {
  return *rc::gen::elementOf(std::vector<Value>(values));
}

std::string some_pattern() {
  const std::string middle = one_of<std::string>(
      {"*", "3", "{0,1}", "quote\"d", "back\\slash", "üml", "// no", "/*"});
  return fmt::format("layers.{}.m{}", middle, *rc::gen::inRange(0, 1000000));
}

WeightCut some_cut() {
  WeightCut cut;
  cut.sharded = *rc::gen::arbitrary<bool>();
  if (!cut.sharded) return cut;
  cut.dim = one_of({PlanDim::out, PlanDim::in, PlanDim::vocab, PlanDim::features});
  cut.unit = one_of({CutUnit::row, CutUnit::head, CutUnit::kv_head, CutUnit::group, CutUnit::chunk});
  for (int sizes = *rc::gen::inRange(0, 3); sizes > 0; --sizes) {
    const int size = *rc::gen::inRange(1, 6);
    std::vector<Ranges> per_rank(static_cast<std::size_t>(size));
    for (Ranges& ranges : per_rank) {
      for (int count = *rc::gen::inRange(0, 3); count > 0; --count) {
        const std::int64_t begin = *rc::gen::inRange<std::int64_t>(0, 1LL << 40);
        ranges.push_back({begin, begin + *rc::gen::inRange<std::int64_t>(0, 1000)});
      }
    }
    cut.ranges[size] = std::move(per_rank);
  }
  return cut;
}

CollectiveStep some_step(const std::vector<std::string>& mesh) {
  using Kind = CollectiveStep::Kind;
  CollectiveStep step;
  step.kind = one_of({Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all,
                      Kind::broadcast, Kind::slice});
  const PlanDim features = one_of({PlanDim::features, PlanDim::vocab, PlanDim::head, PlanDim::kv_head});
  const PlanDim tokens = one_of({PlanDim::tokens, PlanDim::sequence});
  const bool of_tokens = *rc::gen::arbitrary<bool>();
  if (step.kind == Kind::all_reduce) step.op = one_of({ReduceOp::sum, ReduceOp::max});
  if (step.kind == Kind::broadcast) step.root = *rc::gen::inRange(0, 999);
  if (step.kind != Kind::all_reduce && step.kind != Kind::broadcast)
    step.dim = of_tokens ? tokens : features;
  if (step.kind == Kind::all_to_all) step.concat = of_tokens ? features : tokens;
  step.axes = {mesh[*rc::gen::inRange<std::size_t>(0, mesh.size())]};
  if (mesh.size() > 1 && *rc::gen::arbitrary<bool>()) step.axes = mesh;
  return step;
}

std::vector<CollectiveRule> some_points(const std::vector<std::string>& mesh) {
  std::vector<CollectiveRule> rules;
  for (int count = *rc::gen::inRange(0, 4); count > 0; --count) {
    CollectiveRule rule;
    rule.pattern = some_pattern() + ".out";
    for (int steps = *rc::gen::inRange(0, 4); steps > 0; --steps)
      rule.steps.push_back(some_step(mesh));
    rules.push_back(std::move(rule));
  }
  return rules;
}

PlanSection some_section(const std::vector<std::string>& mesh) {
  PlanSection section;
  for (int count = *rc::gen::inRange(0, 4); count > 0; --count) {
    WeightRule rule;
    rule.pattern = some_pattern();
    for (const std::string& axis : mesh) {
      if (*rc::gen::arbitrary<bool>()) rule.cuts[axis] = some_cut();
    }
    section.weights.push_back(std::move(rule));
  }
  section.collectives = some_points(mesh);
  if (*rc::gen::arbitrary<bool>()) section.phase[Phase::decode] = some_points(mesh);
  if (*rc::gen::arbitrary<bool>()) section.phase[Phase::prefill] = some_points(mesh);
  if (*rc::gen::arbitrary<bool>()) section.ops.push_back({some_pattern(), "ring_attention", {}});
  for (int count = *rc::gen::inRange(0, 3); count > 0; --count)
    section.unchecked.push_back({some_pattern(), "moe_tp_experts"});
  return section;
}

/// Patterns are drawn from so many that two alike, which no file can hold, are left out rather than made.
bool has_twice(const PlanSection& section) {
  std::set<std::string> seen;
  for (const WeightRule& rule : section.weights) {
    if (!seen.insert("w" + rule.pattern).second) return true;
  }
  for (const CollectiveRule& rule : section.collectives) {
    if (!seen.insert("c" + rule.pattern).second) return true;
  }
  for (const auto& [phase, rules] : section.phase) {
    for (const CollectiveRule& rule : rules) {
      if (!seen.insert(std::string(name(phase)) + rule.pattern).second) return true;
    }
  }
  for (const UncheckedRule& rule : section.unchecked) {
    if (!seen.insert("u" + rule.pattern).second) return true;
  }
  return false;
}

RC_GTEST_PROP(PlanWrite, IsReadAsItWas, ()) {
  Plan plan;
  plan.name = one_of<std::string>({"p", "two words", "\"quoted\"", "ü"});
  plan.mesh = one_of<std::vector<std::string>>({{"tp"}, {"dp", "tp"}, {"a", "b", "c"}});
  if (*rc::gen::arbitrary<bool>()) {
    plan.families[""] = some_section(plan.mesh);
  } else {
    for (const char* family : {"llama", "gpt2"}) plan.families[family] = some_section(plan.mesh);
  }
  PlanRemarks remarks;
  for (const auto& [family, section] : plan.families) {
    RC_PRE(!has_twice(section));
    for (const WeightRule& rule : section.weights)
      remarks[rule.pattern] = "a \"remark\" */ over\ntwo lines";
  }
  const Plan read = parse_plan(write_plan(plan, remarks, "// head\n"), "written.json");
  RC_ASSERT(read.name == plan.name);
  RC_ASSERT(read.mesh == plan.mesh);
  RC_ASSERT(read.families == plan.families);
}

TEST(PlanWrite, ShippedPlansAreReadAsTheyWere) {
  for (const std::string& shipped : shipped_names("plans")) {
    const Plan plan = load_plan(shipped);
    EXPECT_EQ(parse_plan(write_plan(plan), "written.json").families, plan.families) << shipped;
  }
}

TEST(PlanWrite, IsMadeForReading) {
  const Plan plan = parse_plan(R"json({"name": "p", "mesh": ["tp"],
      "weights": {"a": {"tp": "shard( out  by head )"}, "long.name": {"tp": "shard(in)"}},
      "collectives": {"a.out": ["all_reduce(sum,tp)"]}, "unchecked": {"e.*": "moe"}})json",
                               "p.json");
  EXPECT_EQ(write_plan(plan, {{"a", "colwise"}}), R"json({ "name": "p", "mesh": ["tp"],
  "weights": {
    "a":         {"tp": "shard(out by head)"},  // colwise
    "long.name": {"tp": "shard(in)"}
  },
  "collectives": {
    "a.out": "all_reduce(sum, tp)"
  },
  "unchecked": {
    "e.*": "moe"
  } }
)json");
}

}  // namespace
}  // namespace shardcheck
