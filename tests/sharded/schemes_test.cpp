// SPDX-License-Identifier: Apache-2.0
// Other ways to cut a model than megatron's, run against one rank: sequence-parallel, two axes, heads exchanged for
// tokens, ranges in any order. Every collective of the grammar moves data in at least one of them.
#include <gtest/gtest.h>

#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

struct Scheme {
  const char* name;
  SmallModel model;
  const char* plan;
  std::vector<Mesh> meshes;
};
void PrintTo(const Scheme& given, std::ostream* out) { *out << given.name; }

constexpr const char* kSequenceParallel = R"json({ "name": "sequence", "mesh": ["tp"],
  "weights": {
    "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"},
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "reduce_scatter(sum, tokens, tp)",
    "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, tp)",
    "layers.*.self_attn.o_proj.out": "reduce_scatter(sum, tokens, tp)",
    "layers.*.mlp.{gate,up}_proj.in": "all_gather(tokens, tp)",
    "layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
    "lm_head.in": "all_gather(tokens, tp)", "lm_head.out": "all_gather(vocab, tp)" } })json";

// Attention by heads, its output exchanged for tokens: the projection after it needs no sum.
constexpr const char* kExchanged = R"json({ "name": "exchanged", "mesh": ["tp"],
  "weights": {
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"} },
  "collectives": {
    "layers.*.self_attn.o_proj.in": "all_to_all(tokens, head, tp)",
    "layers.*.self_attn.o_proj.out": "all_gather(tokens, tp)" } })json";

// The way back: tokens exchanged for features, so that a row-parallel weight finds its input.
constexpr const char* kExchangedBack = R"json({ "name": "exchanged back", "mesh": ["tp"],
  "weights": { "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "layers.*.mlp.{gate,up}_proj.in": "slice(tokens, tp)",
    "layers.*.mlp.down_proj.in": "all_to_all(features, tokens, tp)",
    "layers.*.mlp.down_proj.out": ["reduce_scatter(sum, features, tp)", "all_gather(features, tp)"] } })json";

// Rows by x, columns by y: partial sums over y, shards over x.
constexpr const char* kTwoDimensional = R"json({ "name": "2d", "mesh": ["x", "y"],
  "weights": {
    "embed_tokens": {"x": "shard(vocab)", "y": "shard(features)"}, "lm_head": {"x": "shard(vocab)", "y": "shard(in)"},
    "layers.*.self_attn.{q,k,v}_proj": {"y": "shard(in)"},
    "layers.*.self_attn.o_proj": {"x": "shard(in)", "y": "shard(out)"},
    "layers.*.mlp.{gate,up}_proj": {"x": "shard(out)", "y": "shard(in)"},
    "layers.*.mlp.down_proj": {"x": "shard(in)", "y": "shard(out)"} },
  "collectives": {
    "embed_tokens.out": ["all_reduce(sum, x)", "all_gather(features, y)"],
    "layers.*.self_attn.{q,k,v}_proj.in": "slice(features, y)",
    "layers.*.self_attn.{q,k,v}_proj.out": "all_reduce(sum, y)",
    "layers.*.self_attn.o_proj.in": "slice(features, x)",
    "layers.*.self_attn.o_proj.out": ["all_reduce(sum, x)", "all_gather(features, y)"],
    "layers.*.mlp.{gate,up}_proj.in": "slice(features, y)",
    "layers.*.mlp.{gate,up}_proj.out": "all_reduce(sum, y)",
    "layers.*.mlp.down_proj.out": ["all_reduce(sum, x)", "all_gather(features, y)"],
    "lm_head.in": "slice(features, y)",
    "lm_head.out": ["all_reduce(sum, y)", "all_gather(vocab, x)"] } })json";

// One dimension cut by two axes, and one group over both.
constexpr const char* kNested = R"json({ "name": "nested", "mesh": ["x", "y"],
  "weights": {
    "embed_tokens": {"x": "shard(vocab)", "y": "shard(vocab)"}, "lm_head": {"x": "shard(vocab)", "y": "shard(vocab)"},
    "layers.*.self_attn.q_proj": {"x": "shard(out by head)", "y": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"x": "shard(out by kv_head)", "y": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"x": "shard(in by head)", "y": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"x": "shard(out)", "y": "shard(out)"},
    "layers.*.mlp.down_proj": {"x": "shard(in)", "y": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "all_reduce(sum, [x, y])",
    "layers.*.self_attn.o_proj.out": ["reduce_scatter(sum, features, [x, y])", "all_gather(features, [x, y])"],
    "layers.*.mlp.down_proj.out": ["all_reduce(sum, y)", "all_reduce(sum, x)"],
    "lm_head.out": "all_gather(vocab, [x, y])" } })json";

// Tokens by both axes, the outer one gathered first.
constexpr const char* kNestedTokens = R"json({ "name": "nested tokens", "mesh": ["x", "y"], "weights": {},
  "collectives": {
    "embed_tokens.out": "slice(tokens, [x, y])",
    "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, [x, y])",
    "layers.*.self_attn.o_proj.out": ["slice(tokens, x)", "slice(tokens, y)"],
    "layers.*.mlp.down_proj.out": [],
    "lm_head.in": ["all_gather(tokens, y)", "all_gather(tokens, x)"] } })json";

// Ranks own several stretches each, in an order of their own; one has no head, one no vocabulary.
constexpr const char* kScattered = R"json({ "name": "scattered", "mesh": ["tp"],
  "weights": {
    "embed_tokens": {"tp": {"shard": "vocab", "ranges": {"3": [[[200,257],[0,7]], [], [[7,200]]]}}},
    "layers.*.self_attn.q_proj":
      {"tp": {"shard": "out", "by": "head", "ranges": {"3": [[[8,9],[0,2]], [], [[5,8],[2,5]]]}}},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj":
      {"tp": {"shard": "in", "by": "head", "ranges": {"3": [[[8,9],[0,2]], [], [[5,8],[2,5]]]}}},
    "layers.*.mlp.{gate,up}_proj": {"tp": {"shard": "out", "ranges": {"3": [[[50,53],[10,20]],[[0,10]],[[20,50]]]}}},
    "layers.*.mlp.down_proj": {"tp": {"shard": "in", "ranges": {"3": [[[50,53],[10,20]],[[0,10]],[[20,50]]]}}},
    "lm_head": {"tp": {"shard": "vocab", "ranges": {"3": [[[256,257],[0,100]],[[100,256]],[]]}}} },
  "collectives": {
    "embed_tokens.out": "all_reduce(sum, tp)",
    "layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)",
    "layers.*.mlp.down_proj.out": "all_reduce(sum, tp)",
    "lm_head.out": "all_gather(vocab, tp)" } })json";

// gpt2's fused projection, its sections apart and in any order.
constexpr const char* kScatteredFused = R"json({ "name": "scattered fused", "mesh": ["tp"],
  "weights": {
    "h.*.attn.c_attn":
      {"tp": {"shard": "out", "ranges": {"2": [[[8,16],[120,120],[48,56],[0,8],[40,48],[88,96],[80,88]],
                                               [[16,40],[56,80],[96,120]]]}}},
    "h.*.attn.c_proj": {"tp": {"shard": "in", "by": "head", "ranges": {"2": [[[1,2],[0,1]],[[2,5]]]}}} },
  "collectives": { "h.*.attn.c_proj.out": "all_reduce(sum, tp)" } })json";

constexpr const char* kFusedByHeads = R"json({ "name": "fused by heads", "mesh": ["tp"],
  "weights": {
    "h.*.attn.c_attn": {"tp": {"shard": "out", "by": "head", "ranges": {"3": [[[3,5],[0,1]],[],[[1,3]]]}}},
    "h.*.attn.c_proj": {"tp": {"shard": "in", "by": "head", "ranges": {"3": [[[3,5],[0,1]],[],[[1,3]]]}}} },
  "collectives": { "h.*.attn.c_proj.out": "all_reduce(sum, tp)" } })json";

// A whole value sent round is the same value; a plan may say so.
constexpr const char* kBroadcast = R"json({ "name": "broadcast", "mesh": ["tp"], "weights": {},
  "collectives": { "embed_tokens.out": "broadcast(1, tp)", "layers.*.mlp.down_proj.out": "broadcast(0, tp)" } })json";

// Ulysses: tokens outside attention, heads inside.
constexpr const char* kUlysses = R"json({ "name": "ulysses", "mesh": ["tp"], "weights": {},
  "collectives": {
    "embed_tokens.out": "slice(tokens, tp)",
    "layers.*.self_attn.q_proj.out": "all_to_all(head, tokens, tp)",
    "layers.*.self_attn.{k,v}_proj.out": "all_to_all(kv_head, tokens, tp)",
    "layers.*.self_attn.o_proj.in": "all_to_all(tokens, head, tp)",
    "lm_head.in": "all_gather(tokens, tp)" } })json";

// The same for gpt2's fused projection, whose sections can't be exchanged apart: tokens are gathered for attention.
constexpr const char* kTokensOutside = R"json({ "name": "tokens outside", "mesh": ["tp"], "weights": {},
  "collectives": {
    "{wte,wpe}.out": "slice(tokens, tp)",
    "h.*.attn.c_attn.out": "all_gather(tokens, tp)",
    "h.*.attn.c_proj.in": "slice(tokens, tp)",
    "lm_head.in": "all_gather(tokens, tp)" } })json";

// Whole sequences outside attention, heads inside.
constexpr const char* kSequencesForHeads = R"json({ "name": "sequences for heads", "mesh": ["tp"], "weights": {},
  "collectives": {
    "embed_tokens.out": "slice(sequence, tp)",
    "layers.*.self_attn.q_proj.out": "all_to_all(head, sequence, tp)",
    "layers.*.self_attn.{k,v}_proj.out": "all_to_all(kv_head, sequence, tp)",
    "layers.*.self_attn.o_proj.in": "all_to_all(sequence, head, tp)",
    "lm_head.in": "all_gather(sequence, tp)" } })json";

// Sequences over dp, and megatron within each of its rows.
constexpr const char* kDataParallel = R"json({ "name": "dp x tp", "mesh": ["dp", "tp"],
  "weights": {
    "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"},
    "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
    "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
    "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": ["slice(sequence, dp)", "all_reduce(sum, tp)"],
    "layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)",
    "layers.*.mlp.down_proj.out": "all_reduce(sum, tp)",
    "lm_head.out": ["all_gather(vocab, tp)", "all_gather(sequence, dp)"] } })json";

// Sequences dealt out over two axes; attention at home, the MLP's tokens gathered over both at once.
constexpr const char* kSequencesByTwoAxes = R"json({ "name": "sequences by two axes", "mesh": ["x", "y"],
  "weights": { "layers.*.mlp.{gate,up}_proj": {"y": "shard(out)"}, "layers.*.mlp.down_proj": {"y": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "slice(sequence, [x, y])",
    "layers.*.mlp.{gate,up}_proj.in": "all_gather(sequence, [x, y])",
    "layers.*.mlp.down_proj.out": ["all_reduce(sum, y)", "slice(sequence, [x, y])"],
    "lm_head.in": ["all_gather(sequence, y)", "all_gather(sequence, x)"] } })json";

// Norms on a part of the tokens of the rank's own sequences.
constexpr const char* kTokensOfSequences = R"json({ "name": "tokens of sequences", "mesh": ["x", "y"], "weights": {},
  "collectives": {
    "embed_tokens.out": ["slice(sequence, x)", "slice(tokens, y)"],
    "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, y)",
    "layers.*.self_attn.o_proj.in": "slice(tokens, y)",
    "lm_head.in": ["all_gather(tokens, y)", "all_gather(sequence, x)"] } })json";

// The residual stream cut by features, whole only where a norm needs it: what the norm gathers isn't what is added.
constexpr const char* kFeaturesOutside = R"json({ "name": "features outside", "mesh": ["tp"],
  "weights": {
    "embed_tokens": {"tp": "shard(features)"},
    "layers.*.self_attn.o_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(out)"} },
  "collectives": {
    "layers.*.{input_layernorm,post_attention_layernorm}.in": "all_gather(features, tp)",
    "norm.in": "all_gather(features, tp)" } })json";

// Tokens cut in prefill only: a phase takes steps away and puts others in their place.
constexpr const char* kPhases = R"json({ "name": "phases", "mesh": ["tp"],
  "weights": { "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
  "collectives": {
    "embed_tokens.out": "slice(tokens, tp)",
    "layers.*.self_attn.{q,k,v}_proj.in": "all_gather(tokens, tp)",
    "layers.*.self_attn.o_proj.in": "slice(tokens, tp)",
    "layers.*.mlp.{gate,up}_proj.in": "all_gather(tokens, tp)",
    "layers.*.mlp.down_proj.out": "reduce_scatter(sum, tokens, tp)",
    "lm_head.in": "all_gather(tokens, tp)" },
  "phase": {
    "decode": {
      "embed_tokens.out": [], "layers.*.self_attn.{q,k,v}_proj.in": [], "layers.*.self_attn.o_proj.in": [],
      "layers.*.mlp.{gate,up}_proj.in": [], "layers.*.mlp.down_proj.out": "all_reduce(sum, tp)",
      "lm_head.in": [] } } })json";

class EveryScheme : public ::testing::TestWithParam<Scheme> {};

const SmallModel kLlama{"llama", 9, 3, 8, 40, 53, 257, 2, true};
const SmallModel kPlain{"llama", 9, 3, 8, 40, 53, 257, 2, false, true};
const SmallModel kManyKvHeads{"llama", 6, 6, 8, 40, 53, 257, 2};
const SmallModel kGpt2{"gpt2", 5, 5, 8, 40, 53, 83, 2};

INSTANTIATE_TEST_SUITE_P(
    Schemes, EveryScheme,
    ::testing::Values(
        Scheme{"sequence_parallel", kLlama, kSequenceParallel, {line(2), line(4), line(7)}},
        Scheme{"exchanged", kLlama, kExchanged, {line(2), line(4), line(9)}},
        Scheme{"exchanged_back", kLlama, kExchangedBack, {line(2), line(5)}},
        Scheme{"two_dimensional",
               kPlain,
               kTwoDimensional,
               {Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 3}, {"y", 1}}}, Mesh{{{"x", 1}, {"y", 4}}}}},
        Scheme{"nested",
               kPlain,
               kNested,
               {Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 3}, {"y", 2}}}, Mesh{{{"x", 1}, {"y", 9}}}}},
        Scheme{"nested_tokens",
               kPlain,
               kNestedTokens,
               {Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 3}, {"y", 2}}}}},
        Scheme{"scattered", kLlama, kScattered, {line(3)}},
        Scheme{"scattered_fused", kGpt2, kScatteredFused, {line(2)}},
        Scheme{"fused_by_heads", kGpt2, kFusedByHeads, {line(3)}},
        Scheme{"broadcast", kLlama, kBroadcast, {line(3)}},
        Scheme{"ulysses", kLlama, kUlysses, {line(3)}},
        Scheme{"ulysses_of_plain_heads", kManyKvHeads, kUlysses, {line(2), line(4), line(6)}},
        Scheme{"tokens_outside", kGpt2, kTokensOutside, {line(2), line(5)}},
        Scheme{"sequences_for_heads", kLlama, kSequencesForHeads, {line(3)}},
        Scheme{"data_parallel",
               kLlama,
               kDataParallel,
               {Mesh{{{"dp", 2}, {"tp", 2}}}, Mesh{{{"dp", 4}, {"tp", 3}}}, Mesh{{{"dp", 1}, {"tp", 4}}},
                Mesh{{{"dp", 3}, {"tp", 1}}}}},
        Scheme{"data_parallel_in_a_window",
               SmallModel{"mistral", 9, 3, 8, 40, 53, 257, 2, false, false, 4},
               kDataParallel,
               {Mesh{{{"dp", 2}, {"tp", 2}}}, Mesh{{{"dp", 3}, {"tp", 1}}}}},
        Scheme{"sequences_by_two_axes",
               kLlama,
               kSequencesByTwoAxes,
               {Mesh{{{"x", 2}, {"y", 2}}}, Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 1}, {"y", 3}}}}},
        Scheme{"tokens_of_sequences",
               kLlama,
               kTokensOfSequences,
               {Mesh{{{"x", 2}, {"y", 3}}}, Mesh{{{"x", 3}, {"y", 2}}}}},
        Scheme{"features_outside", kLlama, kFeaturesOutside, {line(2), line(7)}},
        Scheme{"phases", kLlama, kPhases, {line(2), line(4)}}),
    [](const auto& test) { return std::string(test.param.name); });

/// Five sequences, two of them in chunks and in another order, one with a chunk of no token; then fewer tokens than most
/// schemes have ranks, and one that was not there before.
std::vector<Step> some_steps(std::int64_t vocab) {
  std::vector<Step> steps{prefill({5, 1, 7}, vocab)};
  steps.push_back(step_of(Phase::prefill, 1, {{3, 0, 4}, {2, 7, 10}, {1, 1, 0}, {4, 0, 2}}, vocab));
  steps.push_back(step_of(Phase::decode, 0, {{0, 5, 1}, {2, 17, 1}}, vocab));
  steps.push_back(step_of(Phase::decode, 1, {{4, 2, 1}}, vocab));
  steps.push_back(step_of(Phase::decode, 2, {{2, 18, 1}, {0, 6, 1}, {1, 1, 1}, {3, 4, 1}, {4, 3, 1}}, vocab));
  return steps;
}

TEST_P(EveryScheme, ComputesTheModel) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const std::int64_t vocab = model.config().vocab_size;
  const Plan plan = parse_plan(GetParam().plan, "scheme.json");
  const std::vector<Step> steps = some_steps(vocab);
  const Ran one = run(model, load_plan("replicated"), line(1), steps, ops);
  for (const Mesh& mesh : GetParam().meshes) {
    const Ran many = run(model, plan, mesh, steps, ops);
    for (const Finding& finding : many.program.findings)
      ADD_FAILURE() << finding.rule << " at " << finding.tap;
    expect_same_values(one, many, summation_limit(model.config()));
    // The same with fewer tokens than ranks.
    const Step single = prefill({1}, vocab);
    EXPECT_LE(difference(run(model, load_plan("replicated"), line(1), {single}, ops).logits(),
                         run(model, plan, mesh, {single}, ops).logits()),
              summation_limit(model.config()));
  }
}

/// Every record of a run.
std::vector<Ledger> ledgers(const Model& model, const Plan& plan, const Mesh& mesh,
                            const std::vector<Step>& steps, const Registry& ops, const char* device,
                            const char* world) {
  RunSetup setup;
  setup.settings = {DType::bf16, DType::f32, {ReduceOp::sum, ReduceOrder::tree, HopRounding::f32}};
  setup.device = device;
  setup.world = world;
  return run(model, plan, mesh, steps, ops, setup).result.ledgers;
}

TEST_P(EveryScheme, LeavesTheSameLedgerOnShapesAlone) {
  const Registry ops = builtin_ops();
  const Model model = make_model(GetParam().model);
  const Model bare(model.config(), nullptr);
  const std::int64_t vocab = model.config().vocab_size;
  const Plan plan = parse_plan(GetParam().plan, "scheme.json");
  const std::vector<Step> steps = some_steps(vocab);
  for (const Mesh& mesh : GetParam().meshes) {
    const std::vector<Ledger> cpu = ledgers(model, plan, mesh, steps, ops, "cpu", "threads");
    EXPECT_EQ(ledgers(bare, plan, mesh, steps, ops, "meta", "solo"), cpu);
    EXPECT_EQ(ledgers(bare, plan, mesh, steps, ops, "meta", "threads"), cpu);
    EXPECT_GT(cpu.at(0).size(), 40u);
  }
}

}  // namespace
}  // namespace shardcheck
