// SPDX-License-Identifier: Apache-2.0
// Proofs of correct programs, and of programs with one fault each: the first differing tap and its ranks are named.
#include "harness/prove.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tests/harness/proof_rig.hpp"

namespace shardcheck::testing {
namespace {

constexpr const char* kWithoutDownSum = R"json({ "name": "no_sum", "mesh": ["tp"],
  "weights": {
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"},
    "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"} },
  "collectives": {
    "embed_tokens.out": "all_reduce(sum, tp)", "layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)",
    "lm_head.out": "all_gather(vocab, tp)" } })json";

/// o_proj cut by columns of its output while its input is cut: local shapes don't fit.
constexpr const char* kColumnwiseOutput = R"json({ "name": "colwise_o", "mesh": ["tp"],
  "weights": {
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(out)"} },
  "collectives": { "layers.*.self_attn.o_proj.out": "all_gather(features, tp)" } })json";

MakeFault after(const std::string& value, int rank,
                std::function<Tensor(RankContext&, const Tensor&)> change) {
  return [=](const Program&) {
    Fault fault;
    fault.after = [=](RankContext& context, const Instruction& instruction,
                      std::vector<Tensor>& outputs) {
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        const std::string& name = context.program().value(instruction.outputs[i]).name;
        if (context.rank() == rank && name == value) outputs[i] = change(context, outputs[i]);
      }
    };
    return fault;
  };
}

MakeFault with_weight(const std::string& tensor, int rank,
                      std::function<Tensor(RankContext&, const Tensor&)> change) {
  return [=](const Program&) {
    Fault fault;
    fault.prepare = [=](RankContext& context) {
      if (context.rank() == rank)
        context.set_weight(tensor, change(context, context.weight(tensor)));
    };
    return fault;
  };
}

TEST(Prove, ShippedModelsAreEqualUnderMegatron) {
  for (const char* model : {"tiny-llama", "tiny-gpt2", "tiny-qwen2", "tiny-mistral",
                            "tiny-llama-bias", "tiny-odd-vocab"}) {
    for (const bool shrink : {true, false}) {
      ProveOptions options;
      options.meshes = {Mesh{{{"tp", 1}}}, Mesh{{{"tp", 2}}}, Mesh{{{"tp", 3}}}, Mesh{{{"tp", 4}}}};
      options.phases = {Phase::prefill, Phase::decode};
      options.shrink = shrink;
      const ProveReport report = proved({.model = model}, options);
      EXPECT_EQ(report.cells.size(), 8u);
      EXPECT_TRUE(report.passed()) << model << "\n" << prove_text(report);
      for (const ProveCell& cell : report.cells) {
        EXPECT_LT(cell.log2_chance, -40.0);
        EXPECT_EQ(cell.shrunk, shrink);
      }
    }
  }
}

TEST(Prove, MeshesOfTwoAxesAreEqual) {
  ProveOptions options;
  options.meshes = {Mesh{{{"tpx", 2}, {"tpy", 2}}}, Mesh{{{"tpx", 3}, {"tpy", 2}}},
                    Mesh{{{"tpx", 1}, {"tpy", 4}}}};
  options.phases = {Phase::prefill, Phase::decode};
  const ProveReport report = proved({.plan = "tp2d"}, options);
  EXPECT_TRUE(report.passed()) << prove_text(report);
}

TEST(Prove, ALegalPlanIsAsked) {
  const ProveReport report = proved({.plan = kWithoutDownSum});
  EXPECT_FALSE(report.ran);
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.cells.empty());
  ASSERT_FALSE(report.findings.empty());
  EXPECT_EQ(report.findings[0].tap, "layers.0.mlp.down_proj");
}

TEST(Prove, AMissingSumIsWrongOnAllRanksAndTheExampleAddsUp) {
  for (const int tp : {2, 3, 8}) {
    Setting setting{.tp = tp, .plan = kWithoutDownSum, .force = true};
    const ProveCell cell = expect_wrong(proved(setting), "layers.0.mlp.down_proj", all_ranks(tp));
    ASSERT_TRUE(cell.counterexample.has_value());
    const Counterexample& example = *cell.counterexample;
    EXPECT_TRUE(example.integers);
    EXPECT_EQ(example.shape.num_layers, 1);
    EXPECT_EQ(static_cast<int>(example.shares.size()), tp);
    for (std::size_t f = 0; f < example.whole.size(); ++f) {
      double sum = 0.0;
      for (const Counterexample::Share& share : example.shares) sum += share.values[f].value();
      EXPECT_EQ(sum, example.whole[f]);
      EXPECT_EQ(sum, std::round(sum));
    }
  }
}

TEST(Prove, ARunThatEndsIsWrongWhereItEnds) {
  const ProveReport report = proved({.plan = kColumnwiseOutput, .force = true});
  const ProveCell& cell = report.cells.at(0);
  EXPECT_EQ(cell.verdict, ProofVerdict::wrong);
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->tap, "layers.0.self_attn.attn") << describe(cell);
  EXPECT_NE(cell.first->problem.find("same shape"), std::string::npos) << describe(cell);
  EXPECT_FALSE(cell.counterexample.has_value());
}

TEST(Prove, ALoaderThatIsOneColumnOffIsWrongOnItsRank) {
  for (const int rank : {0, 1, 2}) {
    expect_caught({.tp = 3}, with_weight("layers.1.mlp.down_proj.weight", rank, rotated),
                  "layers.1.mlp.down_proj.partial", {rank});
  }
}

TEST(Prove, AVocabularyThatIsOneRowOffIsWrongOnItsRank) {
  const auto one_row_on = [](RankContext& context, const Tensor& shard) {
    const Tensor out = copy_of(context, shard);
    context.device().copy(context.stream(), shard.row_range(1, shard.rows),
                          out.row_range(0, shard.rows - 1));
    return out;
  };
  expect_caught({.tp = 4}, with_weight("embed_tokens.weight", 2, one_row_on),
                "embed_tokens.partial", {2});
}

TEST(Prove, AKvHeadOfTheNeighbourIsWrongInAttention) {
  const MakeFault fault = [](const Program&) {
    Fault planted;
    planted.replace = [](RankContext& context, const Instruction& instruction,
                         const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (context.rank() != 1 || instruction.site != "layers.2.self_attn.attn") return false;
      const std::int64_t d = context.program().config.head_dim;
      if (inputs[1].cols < 2 * d) return false;  // no neighbour on this rank
      outputs = instruction.op->run(
          instruction, context, {inputs[0], with_halves_swapped(context, inputs[1], d), inputs[2]});
      return true;
    };
    return planted;
  };
  for (const Phase phase : {Phase::prefill, Phase::decode})
    expect_caught({.tp = 2, .phase = phase}, fault, "layers.2.self_attn.attn", {1});
}

TEST(Prove, SwappedRanksInAGatherAreWrong) {
  const auto swap = [](RankContext& context, const Tensor& logits) {
    return with_halves_swapped(context, logits, logits.cols / 2);
  };
  const ProveCell cell = expect_caught({.tp = 2}, after("lm_head", 1, swap), "lm_head", {1});
  ASSERT_TRUE(cell.counterexample.has_value());
  EXPECT_TRUE(cell.counterexample->integers);
  EXPECT_EQ(cell.counterexample->op, "all_gather(vocab, tp)");
}

TEST(Prove, ABiasThatCountsTwiceIsWrong) {
  const auto add_bias = [](RankContext& context, const Tensor& x) {
    const Tensor out = copy_of(context, x);
    context.device().bias(context.stream(), x, context.weight("layers.1.mlp.down_proj.bias"), out);
    return out;
  };
  const Setting setting{.model = "tiny-llama-bias", .tp = 2};
  expect_caught(setting, after("layers.1.mlp.down_proj", 0, add_bias), "layers.1.mlp.down_proj", {0});
  expect_caught(setting, after("layers.1.mlp.down_proj.partial", 1, add_bias),
                "layers.1.mlp.down_proj.partial", {1});
  ProveOptions options = proof_of(setting);
  options.edit_program = [](Program& program) {
    for (auto& [phase, instructions] : program.instructions) {
      for (Instruction& instruction : instructions) {
        if (instruction.site == "layers.0.self_attn.o_proj.partial") instruction.adds_bias = true;
      }
    }
  };
  expect_wrong(proved(setting, options), "layers.0.self_attn.o_proj.partial", {0, 1});
}

TEST(Prove, AStaleCacheIsWrongInItsStep) {
  const MakeFault fault = [](const Program&) {
    Fault planted;
    planted.after = [](RankContext& context, const Instruction& instruction,
                       std::vector<Tensor>& outputs) {
      if (context.rank() != 0 || instruction.site != "layers.0.self_attn.k_cache") return;
      if (context.step().phase != Phase::decode || outputs[0].rows < 2) return;
      outputs[0] = copy_of(context, outputs[0]);
      const std::int64_t first = visible_keys(context.step().sequences[0], 0).size();
      context.device().copy(context.stream(), outputs[0].row_range(0, 1),
                            outputs[0].row_range(first - 1, first));
    };
    return planted;
  };
  const ProveCell cell = expect_caught({.tp = 2, .phase = Phase::decode}, fault,
                                       "layers.0.self_attn.k_cache", {0});
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->phase, Phase::decode);
  EXPECT_EQ(cell.first->step, 0);
}

TEST(Prove, AValueThatChangesBeforeItIsReadIsWrongWhereItIsRead) {
  const MakeFault fault = [](const Program&) {
    Fault planted;
    planted.between = [](RankContext& context, const Instruction& instruction,
                         std::vector<Tensor>& outputs) {
      if (context.rank() == 1 && instruction.site == "layers.1.mlp.act")
        outputs[0] = rotated(context, outputs[0]);
    };
    return planted;
  };
  expect_caught({.tp = 2}, fault, "layers.1.mlp.down_proj.partial", {1});
}

TEST(Prove, ARankThatLeavesOutACollectiveIsWrongAndNeverHangs) {
  const MakeFault fault = [](const Program&) {
    Fault planted;
    planted.replace = [](RankContext& context, const Instruction& instruction,
                         const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (context.rank() != 1 || instruction.site != "layers.0.mlp.down_proj") return false;
      outputs = inputs;
      return true;
    };
    return planted;
  };
  const ProveReport report = proved({.tp = 2}, fault);
  const ProveCell& cell = report.cells.at(0);
  EXPECT_EQ(cell.verdict, ProofVerdict::wrong) << describe(cell);
  ASSERT_TRUE(cell.first.has_value());
}

TEST(Prove, AnEditedPlanIsWrongOnTheRankWhoseRangesWereChanged) {
  ProveOptions options = proof_of({.tp = 2});
  options.edit_plan = [](ResolvedPlan& plan) {
    // Rank 1's part begins one row early: a row counts twice.
    plan.weights["embed_tokens"].rows[1][0].begin -= 1;
  };
  expect_wrong(proved({.tp = 2}, options), "embed_tokens.partial", {1});
}

TEST(Prove, FeaturesThatNoRankHoldsAreWrongWhereTheyAreLost) {
  // Rank 0's part of the vocabulary goes to rank 1 as well, in place of its own; what each rank has is right.
  ProveOptions options = proof_of({.tp = 2});
  options.edit_plan = [](ResolvedPlan& plan) {
    plan.weights["lm_head"].rows[1] = plan.weights["lm_head"].rows[0];
  };
  const ProveCell cell = proved({.tp = 2}, options).cells.at(0);
  EXPECT_EQ(cell.verdict, ProofVerdict::wrong);
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->tap, "lm_head.partial");
  EXPECT_EQ(cell.first->ranks, std::vector<int>{1});
  EXPECT_NE(cell.first->problem.find("no rank holds features [7,14)"), std::string::npos)
      << cell.first->problem;
}

/// In the first step it shows on one rank, in the second on the other.
TEST(Prove, RanksAreThoseOfAllSteps) {
  const MakeFault fault = [](const Program&) {
    Fault planted;
    planted.after = [](RankContext& context, const Instruction& instruction,
                       std::vector<Tensor>& outputs) {
      if (instruction.site == "layers.0.mlp.act" && context.step().index == context.rank() &&
          context.rank() < 2)
        outputs[0] = rotated(context, outputs[0]);
    };
    return planted;
  };
  const ProveCell cell = expect_caught({.tp = 3}, fault, "layers.0.mlp.act", {0, 1});
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->step, 0);
}

TEST(Prove, AStatisticOfTheWrongRankIsWrong) {
  const auto zero = [](RankContext& context, const Tensor& x) {
    const Tensor out = copy_of(context, x);
    context.device().add(context.stream(), x, x, out);
    return out;
  };
  const Setting setting{.model = "tiny-olmo2", .tp = 3};
  expect_caught(setting, after("layers.1.self_attn.q_norm.stat.partial", 2, zero),
                "layers.1.self_attn.q_norm.stat.partial", {2});
  expect_caught(setting, after("layers.1.self_attn.k_norm.stat", 1, zero),
                "layers.1.self_attn.k_norm.stat", {1});
}

TEST(Prove, OnTwoAxesTheRankIsNamed) {
  ProveOptions options = proof_of({}, with_weight("layers.0.mlp.down_proj.weight", 3, rotated));
  options.meshes = {Mesh{{{"tpx", 2}, {"tpy", 2}}}};
  const ProveReport report = proved({.plan = "tp2d"}, options);
  EXPECT_EQ(report.cells.at(0).verdict, ProofVerdict::wrong);
  ASSERT_TRUE(report.cells.at(0).first.has_value());
  EXPECT_EQ(report.cells.at(0).first->tap, "layers.0.mlp.down_proj.partial")
      << describe(report.cells.at(0));
  EXPECT_EQ(report.cells.at(0).first->ranks, std::vector<int>{3}) << describe(report.cells.at(0));
}

/// rms_norm(2x) is rms_norm(x) but for eps: true of numbers, not of a random function.
TEST(Prove, AnIdentityThatOnlyNumbersHaveIsUnproven) {
  Config config = load_model("tiny-llama").config();
  config.norm_eps = 1e-300;
  const Model model(config, nullptr);
  const MakeFault doubled = [](const Program&) {
    Fault planted;
    planted.replace = [](RankContext& context, const Instruction& instruction,
                         const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (context.rank() != 0 || instruction.site != "layers.1.input_layernorm") return false;
      const Tensor twice = copy_of(context, inputs[0]);
      context.device().add(context.stream(), inputs[0], inputs[0], twice);
      outputs = instruction.op->run(instruction, context, {twice});
      return true;
    };
    return planted;
  };
  const ProveReport report = prove(model, load_plan("megatron"), proof_of({}, doubled),
                                   builtin_parts());
  const ProveCell& cell = report.cells.at(0);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(cell.verdict, ProofVerdict::unproven) << describe(cell);
  ASSERT_TRUE(cell.first.has_value());
  EXPECT_EQ(cell.first->tap, "layers.1.input_layernorm");
  EXPECT_EQ(cell.first->ranks, std::vector<int>{0});
  EXPECT_FALSE(cell.reason.empty());
  EXPECT_FALSE(cell.counterexample.has_value());
}

/// A site that is called so often, so deep in the network, that chance might hide a difference.
TEST(Prove, ABoundThatIsTooWeakIsUnprovenAndNamesItsSite) {
  const MakeFault busy = [](const Program&) {
    Fault planted;
    planted.after = [](RankContext& context, const Instruction& instruction, std::vector<Tensor>&) {
      if (context.rank() != 0 || instruction.site != "layers.0.mlp.act") return;
      if (context.settings().storage != DType::field || context.step().index > 0) return;
      Device& device = context.device();
      Stream& stream = context.stream();
      HostTensor ones(DType::field, {1, 1});
      ones.as_mutable<std::uint64_t>()[0] = 1;
      const Tensor x = device.adopt(stream, ones), y = device.allocate(stream, DType::field, 1, 1);
      for (int i = 0; i < 300000; ++i) device.linear(stream, x, x, nullptr, y);
      const Tensor many = device.allocate(stream, DType::field, 1000, 1000);
      device.upload(stream, HostTensor(DType::field, {1000, 1000}), many);
      device.unary(stream, UnaryKind::silu, many, many);
    };
    return planted;
  };
  const ProveReport report = proved({}, busy);
  const ProveCell& cell = report.cells.at(0);
  EXPECT_EQ(cell.verdict, ProofVerdict::unproven);
  EXPECT_EQ(cell.seeds, 1);
  EXPECT_NE(cell.reason.find("sigmoid at layers.0.mlp.act"), std::string::npos) << cell.reason;
}

TEST(Prove, SeedsAreTheFewestThatSufficeOrAsMany) {
  ProveReport report = proved({});
  const ProveCell enough = report.cells.at(0);
  EXPECT_EQ(enough.seeds, 2);
  EXPECT_GT(enough.log2_chance / enough.seeds, -40.0);  // one would not have done
  ProveOptions options = proof_of({});
  options.seeds = 4;
  const ProveCell four = proved({}, options).cells.at(0);
  EXPECT_EQ(four.seeds, 4);
  EXPECT_DOUBLE_EQ(four.log2_chance, 2.0 * enough.log2_chance);
  EXPECT_EQ(four.taps, 2 * enough.taps);
}

TEST(Prove, TheReportIsInJson) {
  const nlohmann::json json = nlohmann::json::parse(
      prove_json(proved({.plan = kWithoutDownSum, .force = true})));
  EXPECT_EQ(json["schema"], "shardcheck.prove/1");
  EXPECT_EQ(json["verdict"], "failed");
  const nlohmann::json& cell = json["cells"].at(0);
  EXPECT_EQ(cell["mesh"], (nlohmann::json{{"tp", 2}}));
  EXPECT_EQ(cell["verdict"], "wrong");
  EXPECT_EQ(cell["first"]["tap"], "layers.0.mlp.down_proj");
  EXPECT_EQ(cell["first"]["ranks"], (nlohmann::json{0, 1}));
  EXPECT_TRUE(cell["first"]["index"].is_object());
  EXPECT_EQ(cell["counterexample"]["shares"].size(), 2u);
  EXPECT_EQ(cell["counterexample"]["whole"].size(),
            cell["counterexample"]["shares"].at(1)["values"].size());
}

}  // namespace
}  // namespace shardcheck::testing
