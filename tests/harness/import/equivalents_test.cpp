// SPDX-License-Identifier: Apache-2.0
// The plan megatron in the words of each project: by heads it is the same plan, to the last range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/lint.hpp"
#include "sharded/op.hpp"
#include "tests/harness/import/import_models.hpp"

namespace shardcheck::testing {
namespace {

constexpr const char* kHuggingFace = R"json({
  "base_model_tp_plan": {
    "embed_tokens": "embedding_rowwise",
    "layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise", "layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise" },
  "_tp_plan": {"lm_head": "colwise_gather_output"} })json";

constexpr const char* kOldHuggingFace = R"json({
  "model.embed_tokens": "rowwise",
  "model.layers.*.self_attn.{q,k,v}_proj": "local_colwise", "model.layers.*.self_attn.o_proj": "local_rowwise",
  "model.layers.*.self_attn": "gather",
  "model.layers.*.mlp.gate_proj": "local_colwise", "model.layers.*.mlp.up_proj": "local_colwise",
  "model.layers.*.mlp.down_proj": "local_rowwise", "model.layers.*.mlp": "gather",
  "lm_head": "colwise_rep" })json";

constexpr const char* kDTensor = R"json({ // keyword arguments as in Python, or as members
  "embed_tokens": "RowwiseParallel(input_layouts=Replicate())",
  "layers.*.self_attn.q_proj": "ColwiseParallel()",
  "layers.*.self_attn.k_proj": {"style": "ColwiseParallel"},
  "layers.*.self_attn.v_proj": "ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)",
  "layers.*.self_attn.o_proj": "RowwiseParallel",
  "layers.*.mlp.gate_proj": "ColwiseParallel()", "layers.*.mlp.up_proj": "ColwiseParallel()",
  "layers.*.mlp.down_proj": {"style": "RowwiseParallel", "output_layouts": "Replicate()"},
  "lm_head": "ColwiseParallel(output_layouts=Replicate())" })json";

constexpr const char* kVllm = R"json({
  "embed_tokens": "VocabParallelEmbedding",
  "layers.*.self_attn.qkv_proj": "QKVParallelLinear", "layers.*.self_attn.o_proj": "RowParallelLinear",
  "layers.*.mlp.gate_up_proj": "MergedColumnParallelLinear", "layers.*.mlp.down_proj": "RowParallelLinear",
  "norm": "RMSNorm", "lm_head": "ParallelLMHead" })json";

/// DeepSpeed leaves embeddings whole.
constexpr const char* kDeepSpeed = R"json({ "train_batch_size": 8, "tensor_parallel": { "autotp_size": 4,
  "partition_config": { "use_default_specs": false, "layer_specs": [
    {"patterns": [".*\\.o_proj\\.weight$", ".*\\.down_proj\\.weight$"], "partition_type": "row"},
    {"patterns": [".*\\.[qkv]_proj\\.weight$"], "partition_type": "column"},
    {"patterns": [".*\\.(up|gate)_proj\\.weight$"]},
    {"patterns": [".*\\.lm_head\\.weight$"], "partition_type": "column", "gather_output": true} ] } } })json";

void expect_same(const ResolvedPlan& ours, const ResolvedPlan& theirs, const Model& model,
                 const std::string& but) {
  for (const Module& module : model.modules()) {
    if (module.path == but) continue;
    EXPECT_EQ(ours.placement(module.path).rows, theirs.placement(module.path).rows) << module.path;
    EXPECT_EQ(ours.placement(module.path).cols, theirs.placement(module.path).cols) << module.path;
    EXPECT_EQ(ours.placement(module.path).may_overlap, theirs.placement(module.path).may_overlap)
        << module.path;
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      for (const char* point : {".in", ".out"}) {
        EXPECT_EQ(ours.steps(phase, module.path + point), theirs.steps(phase, module.path + point))
            << module.path;
      }
    }
  }
}

struct Equivalent {
  const char* name;
  const char* text;
  ImportSource source;
  const char* but;  // a module that this project can't cut
};

class EquivalentOf : public ::testing::TestWithParam<Equivalent> {};

TEST_P(EquivalentOf, MegatronByHeads) {
  const Equivalent& theirs = GetParam();
  // Nothing divides: 9 heads, 3 kv heads, an odd width and vocabulary.
  const Model model = import_model({"llama", 9, 3, 8, 40, 73, 101});
  const ImportedPlan plan = imported(theirs.text, theirs.source, &model, true);
  const Plan megatron = load_plan("megatron");
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const ResolvedPlan ours = resolve(megatron, model, tp(ranks));
    expect_same(ours, resolve(plan.plan, model, tp(ranks)), model, theirs.but);
    expect_same(ours, resolve(written_and_read(plan), model, tp(ranks)), model, theirs.but);
  }
}

TEST_P(EquivalentOf, MegatronAsItIsWhereAllDivides) {
  const Equivalent& theirs = GetParam();
  const Model model = import_model({"llama", 16, 8, 8, 40, 64, 128});
  const ImportedPlan plan = imported(theirs.text, theirs.source, &model);
  for (const int ranks : {1, 2, 4, 8}) {
    const ResolvedPlan ours = resolve(load_plan("megatron"), model, tp(ranks));
    const ResolvedPlan read = resolve(plan.plan, model, tp(ranks));
    for (const Module& module : model.modules()) {
      if (module.path == theirs.but) continue;
      EXPECT_EQ(ours.placement(module.path).rows, read.placement(module.path).rows) << module.path;
      EXPECT_EQ(ours.placement(module.path).cols, read.placement(module.path).cols) << module.path;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sources, EquivalentOf,
    ::testing::Values(Equivalent{"hf", kHuggingFace, ImportSource::hf, ""},
                      Equivalent{"old_hf", kOldHuggingFace, ImportSource::hf, ""},
                      Equivalent{"dtensor", kDTensor, ImportSource::dtensor, ""},
                      Equivalent{"vllm", kVllm, ImportSource::vllm, ""},
                      Equivalent{"deepspeed", kDeepSpeed, ImportSource::deepspeed, "embed_tokens"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Equivalents, DeepSpeedComparesModelTypesInAnyCase) {
  const Model model = import_model({});
  const ImportedPlan plan = imported(R"json({"layer_specs": [
    {"patterns": [".*up_proj"], "model_types": ["gpt2", "LLaMA"]}, {"patterns": [".*"], "model_types": ["gpt2"]}]})json",
                                     ImportSource::deepspeed, &model);
  const PlanSection& section = plan.plan.families.at("");
  ASSERT_EQ(section.weights.size(), 1u);
  EXPECT_EQ(section.weights[0].pattern, "layers.*.mlp.up_proj");
}

TEST(Equivalents, SequenceParallelOfDTensor) {
  const Model model = import_model({});
  const ImportedPlan plan = imported(R"json({
    "embed_tokens": "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))",
    "layers.*.input_layernorm": "SequenceParallel()",
    "layers.*.self_attn": {"style": "PrepareModuleInput", "input_layouts": ["Shard(1)", null],
                           "desired_input_layouts": ["Replicate()", null]},
    "layers.*.self_attn.{q,k,v}_proj": "ColwiseParallel()",
    "layers.*.self_attn.o_proj": "RowwiseParallel(output_layouts=Shard(1))",
    "layers.*.post_attention_layernorm": "SequenceParallel()",
    "layers.*.mlp": "PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))",
    "layers.*.mlp.gate_proj": "ColwiseParallel()", "layers.*.mlp.up_proj": "ColwiseParallel()",
    "layers.*.mlp.down_proj": "RowwiseParallel(output_layouts=Shard(1))",
    "norm": "SequenceParallel()",
    "lm_head": "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())" })json",
                                     ImportSource::dtensor, &model);
  const ResolvedPlan resolved = resolve(plan.plan, model, tp(2));
  EXPECT_EQ(to_string(resolved.steps(Phase::prefill, "embed_tokens.out").at(0)),
            "reduce_scatter(sum, tokens, tp)");
  EXPECT_EQ(to_string(resolved.steps(Phase::prefill, "layers.1.self_attn.q_proj.in").at(0)),
            "all_gather(tokens, tp)");
  EXPECT_EQ(to_string(resolved.steps(Phase::prefill, "layers.0.mlp.gate_proj.in").at(0)),
            "all_gather(tokens, tp)");
  EXPECT_EQ(to_string(resolved.steps(Phase::decode, "layers.0.mlp.down_proj.out").at(0)),
            "reduce_scatter(sum, tokens, tp)");
  EXPECT_EQ(to_string(resolved.steps(Phase::decode, "lm_head.in").at(0)), "all_gather(tokens, tp)");
  EXPECT_TRUE(lint(model, plan.plan, {tp(2), tp(4)}, builtin_ops()).passed());
}

TEST(Equivalents, TwoDimensionsOfDTensorHaveTokensFirst) {
  const ImportedPlan plan = imported(R"json({"activation_dims": 2, "plan": {
    "norm": "SequenceParallel(sequence_dim=0)",
    "lm_head": "ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate())"}})json",
                                     ImportSource::dtensor);
  EXPECT_EQ(to_string(plan.plan.families.at("").collectives.at(0).steps.at(0)),
            "all_gather(tokens, tp)");
}

TEST(Equivalents, FusedWeightsOfDeepSpeedBySubBlocks) {
  const Model model = import_model({"phi3", 8, 4, 8, 64, 72, 96});
  const auto plan_with = [&](const std::string& shape) {
    return imported(R"json({"layer_specs": [
      {"patterns": [".*qkv_proj"], "partition_type": "column")json" +
                        shape + R"json(},
      {"patterns": [".*gate_up_proj"], "partition_type": "column", "shape": [2, -1]},
      {"patterns": [".*(o|down)_proj"], "partition_type": "row"}]})json",
                    ImportSource::deepspeed, &model);
  };
  // q | k | v of 64, 32 and 32 rows: each cut between the kv heads' shares.
  const Plan right = plan_with(R"(, "shape": [[64, 32, 32], -1])").plan;
  EXPECT_TRUE(lint(model, right, {tp(2), tp(4)}, builtin_ops()).passed());
  EXPECT_EQ(
      to_string(resolve(right, model, tp(2)).rows_of(model.module("layers.0.self_attn.qkv_proj"), 1)),
      "[32,64)+[80,96)+[112,128)");
  // As one tensor: across q, k and v.
  const Plan wrong = plan_with("").plan;
  EXPECT_EQ(
      to_string(resolve(wrong, model, tp(2)).rows_of(model.module("layers.0.self_attn.qkv_proj"), 1)),
      "[64,128)");
  EXPECT_FALSE(lint(model, wrong, {tp(2)}, builtin_ops()).passed());
  // 3 ranks on 4 kv heads: 2 + 1 + 1 of them, each with its 2 q heads.
  EXPECT_EQ(
      to_string(resolve(right, model, tp(3)).rows_of(model.module("layers.0.self_attn.qkv_proj"), 0)),
      "[0,32)+[64,80)+[96,112)");
}

TEST(Equivalents, PackedColwiseCutsEachHalf) {
  const Model model = import_model({"phi3", 8, 4, 8, 64, 72, 96});
  const char* text = R"json({"layers.*.mlp.gate_up_proj": "packed_colwise", "layers.*.mlp.down_proj": "rowwise"})json";
  const Plan plan = imported(text, ImportSource::hf, &model).plan;
  const Module& fused = model.module("layers.1.mlp.gate_up_proj");
  EXPECT_EQ(to_string(resolve(plan, model, tp(2)).rows_of(fused, 1)), "[36,72)+[108,144)");
  EXPECT_TRUE(lint(model, plan, {tp(2), tp(3)}, builtin_ops()).passed());
  const Plan as_one = imported(R"json({"layers.*.mlp.gate_up_proj": "colwise",
                                         "layers.*.mlp.down_proj": "rowwise"})json",
                               ImportSource::hf, &model)
                          .plan;
  EXPECT_EQ(to_string(resolve(as_one, model, tp(2)).rows_of(fused, 1)), "[72,144)");
  EXPECT_FALSE(lint(model, as_one, {tp(2)}, builtin_ops()).passed());
}

TEST(Equivalents, VllmPadsTheVocabulary) {
  const Model model = import_model({"llama", 16, 8, 8, 40, 72, 100});  // 128 rows with padding
  const Plan plan = imported(R"({"embed_tokens": "VocabParallelEmbedding"})", ImportSource::vllm, &model)
                        .plan;
  const ResolvedPlan resolved = resolve(plan, model, tp(4));
  EXPECT_EQ(to_string(resolved.rows_of(model.module("embed_tokens"), 2)), "[64,96)");
  EXPECT_EQ(to_string(resolved.rows_of(model.module("embed_tokens"), 3)), "[96,100)");
}

}  // namespace
}  // namespace shardcheck::testing
