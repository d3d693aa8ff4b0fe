// SPDX-License-Identifier: Apache-2.0
// The fault catalogue, and how a trial is classified: caught, missed, below rounding, without effect.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "harness/diagnose/causes.hpp"
#include "harness/faults/anatomy.hpp"
#include "harness/faults/kill_table.hpp"
#include "harness/faults/legal.hpp"
#include "harness/faults/tensors.hpp"
#include "model/error.hpp"
#include "sharded/placement_rule_names.hpp"

namespace shardcheck::testing {
namespace {

using faults::change_output;

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> all(1);
  for (const char c : text) {
    if (c == '|') {
      all.emplace_back();
    } else {
      all.back() += c;
    }
  }
  return all;
}

TEST(FaultCatalogue, IsWellFormed) {
  const std::vector<Fault> all = fault_catalogue();
  EXPECT_GE(all.size(), 60u);
  std::set<std::string> names;
  std::set<char> kinds;
  for (const Fault& fault : all) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name;
    kinds.insert(fault.kind);
    EXPECT_FALSE(fault.what.empty()) << fault.name;
    EXPECT_NE(fault.source.find_first_of("#("), std::string::npos)
        << fault.name << ": " << fault.source;
    for (const std::string& cause : words(fault.cause))
      EXPECT_NE(find_cause(cause), nullptr) << fault.name << ": " << cause;
    const std::vector<FaultGate> jobs = jobs_of(fault);
    const bool lint = std::find(jobs.begin(), jobs.end(), FaultGate::lint) != jobs.end();
    EXPECT_EQ(lint, !fault.rule.empty()) << fault.name;
    for (const std::string& rule : lint ? words(fault.rule) : std::vector<std::string>{})
      EXPECT_NE(find_placement_rule(rule), nullptr) << fault.name << ": " << rule;
  }
  // Kind I needs quantised shards.
  for (const char kind : std::string("ABCDEFGHJKLMNO")) EXPECT_TRUE(kinds.count(kind)) << kind;
}

/// A fault of a test's own: the first row-parallel linear's partial of rank 1 is multiplied.
Fault scaled(double factor) {
  Fault fault;
  fault.name = "scaled";
  fault.source = "a test (no report)";
  fault.layer = FaultLayer::arithmetic;
  fault.cause = "wrong_factor";
  fault.places = [](const Program& program, Phase phase) {
    return faults::sites(program, phase, faults::makes_partial);
  };
  fault.plant = [factor](const Program&, const Spot& spot) -> std::optional<Planted> {
    return change_output(
        spot.place, {spot.rank},
        [factor](RankContext& context, const Instruction&, std::vector<Tensor>& outputs) {
          outputs[0] = faults::changed(context, outputs[0], [factor](auto values, auto) {
            for (double& value : values) value *= factor;
          });
        });
  };
  return fault;
}

class FaultTrial : public ::testing::Test {
 protected:
  FaultTrial() : bench_(model_, plan_, {Mesh{{{"tp", 2}}}}, parts_) {}

  std::map<FaultGate, FaultRow> tried(const Fault& fault) {
    const std::vector<std::string> places = fault.places(bench_.program(0), fault.phase);
    std::map<FaultGate, FaultRow> rows;
    for (FaultRow& row : bench_.try_fault(fault, {places.at(1), 1, fault.phase}, 0))
      rows[row.gate] = std::move(row);
    return rows;
  }

  const VerifyParts parts_ = builtin_parts();
  const Model model_ = load_model("tiny-llama");
  const Plan plan_ = load_plan("megatron");
  FaultBench bench_;
};

TEST_F(FaultTrial, CorrectProgramRaisesNoAlarm) {
  EXPECT_EQ(bench_.correct_runs(), 8);
  EXPECT_THAT(bench_.alarms(), ::testing::IsEmpty());
}

TEST_F(FaultTrial, CaughtWhereItBegins) {
  const auto rows = tried(scaled(1.5));
  for (const FaultGate gate : {FaultGate::f64, FaultGate::f32, FaultGate::bf16, FaultGate::fp16}) {
    const FaultRow& row = rows.at(gate);
    EXPECT_EQ(row.status, FaultStatus::caught) << name(gate);
    EXPECT_TRUE(row.first_is_right()) << row.first.tap;
    EXPECT_TRUE(row.cause_is_right()) << row.cause;
    EXPECT_LT(row.margin, 1.0);
  }
  EXPECT_EQ(rows.at(FaultGate::lint).status, FaultStatus::not_its_job);
  EXPECT_EQ(rows.at(FaultGate::prove).status, FaultStatus::not_its_job);
}

TEST_F(FaultTrial, FaultWithoutEffectIsNotCounted) {
  const auto rows = tried(scaled(1.0));
  for (const auto& [gate, row] : rows) {
    const bool numbers = gate != FaultGate::lint && gate != FaultGate::prove;
    EXPECT_EQ(row.status, numbers ? FaultStatus::no_effect : FaultStatus::not_its_job) << name(gate);
    GateScore score;
    score.add(row);
    EXPECT_EQ(score.counted(), 0);
  }
}

TEST_F(FaultTrial, EffectSmallerThanAFormatsRoundingIsTold) {
  const auto rows = tried(scaled(1.0 + 1e-4));
  EXPECT_EQ(rows.at(FaultGate::f64).status, FaultStatus::caught);
  EXPECT_EQ(rows.at(FaultGate::f32).status, FaultStatus::caught);
  const FaultStatus bf16 = rows.at(FaultGate::bf16).status;
  EXPECT_TRUE(bf16 == FaultStatus::below_rounding || bf16 == FaultStatus::no_effect) << name(bf16);
  GateScore score;
  score.add(rows.at(FaultGate::bf16));
  EXPECT_EQ(score.missed, 0);
}

TEST(FaultScore, MissedAndMisplacedFail) {
  FaultReport report;
  FaultRow row;
  row.gate = FaultGate::f64;
  row.status = FaultStatus::caught;
  row.first = row.expected = {"layers.0.mlp.down_proj", {1, 0}};
  row.cause = "factor_tp";
  row.expected_cause = "factor_two|factor_tp";
  report.rows = {row};
  EXPECT_TRUE(report.passed());
  report.rows[0].expected.ranks = {0, 1};
  EXPECT_TRUE(report.passed()) << "ranks are a set";
  report.rows[0].expected.ranks = {0};
  EXPECT_FALSE(report.passed());
  report.rows = {row};
  report.rows[0].status = FaultStatus::missed;
  EXPECT_FALSE(report.passed());
  report.rows = {row};
  report.rows[0].cause = "wrong_scale";
  EXPECT_FALSE(report.passed()) << "no cause is right";
  report.rows = {row};
  report.alarms = {"a correct run failed"};
  EXPECT_FALSE(report.passed());
}

TEST(FaultTable, RunsPrintsAndWrites) {
  FaultOptions options;
  options.models = {"tiny-gpt2"};
  options.tp = {2};
  options.faults = {"bias_on_every_rank", "all_reduce_removed", "fused_loaded_as_one_block"};
  options.legal = false;
  const FaultReport report = run_faults(options, builtin_parts());
  const std::string table = faults_table(report);
  EXPECT_TRUE(report.passed()) << table;
  EXPECT_THAT(table, ::testing::HasSubstr("3 faults at"));
  const nlohmann::json json = nlohmann::json::parse(faults_json(report));
  EXPECT_EQ(json.at("schema"), "shardcheck.faults/1");
  EXPECT_EQ(json.at("false_alarms"), 0);
  ASSERT_FALSE(json.at("rows").empty());
  for (const char* field : {"fault", "kind", "source", "site", "mesh", "gate", "caught", "first",
                            "expected_first", "cause", "expected_cause", "margin", "status"})
    EXPECT_TRUE(json.at("rows")[0].contains(field)) << field;
}

TEST(FaultTable, UnknownFaultIsRefusedWithTheNearest) {
  FaultOptions options;
  options.models = {"tiny-llama"};
  options.tp = {2};
  options.faults = {"reduced_twise"};
  try {
    run_faults(options, builtin_parts());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("reduced_twice"));
  }
}

TEST(LegalRuns, UnevenCutsAreUnevenAndLegal) {
  const Model model = load_model("tiny-llama");
  const Mesh mesh{{{"tp", 3}}};
  ResolvedPlan plan = resolve(load_plan("megatron"), model, mesh);
  const ResolvedPlan before = plan;
  cut_unevenly(plan, model.modules());
  for (const char* path : {"embed_tokens", "layers.0.mlp.gate_proj", "lm_head"}) {
    const auto& rows = plan.placement(path).rows;
    EXPECT_NE(rows, before.placement(path).rows) << path;
    EXPECT_EQ(Partition(model.module(path).out, rows).defect(), "") << path;
  }
  EXPECT_EQ(plan.placement("layers.0.mlp.down_proj").cols,
            plan.placement("layers.0.mlp.gate_proj").rows);
  EXPECT_EQ(plan.placement("layers.0.self_attn.q_proj").rows,
            before.placement("layers.0.self_attn.q_proj").rows);
}

}  // namespace
}  // namespace shardcheck::testing
