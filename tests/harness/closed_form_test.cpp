// SPDX-License-Identifier: Apache-2.0
// The audit's closed form by hand, for plans that cut rows, weights on two axes or a norm's statistic, and for plans that
// nobody ships; and that it is what the program issues.
#include <gtest/gtest.h>

#include "harness/audit.hpp"
#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

// tiny-llama: 3 layers, hidden 48, 8 heads of 8 and 4 kv heads, vocabulary 320.
constexpr std::int64_t kHidden = 48, kVocab = 320, kLayers = 3;

std::vector<ExpectedCollective> form(const RanProgram& ran, int rank, std::size_t step = 0) {
  return closed_form(ran.model, ran.program.plan, ran.settings, std::span(ran.steps).first(step + 1), rank);
}

void expect_issued(const RanProgram& ran) {
  const AuditResult result = audit(ran.model, ran.program.plan, ran.settings, ran.steps,
                                   ran.result.ledgers, ran.meta);
  EXPECT_TRUE(result.passed) << result.problem;
  EXPECT_GT(result.collectives, 0);
}

struct Row {
  std::string module, what, group;
  std::int64_t payload, own;  // elements
  DType dtype = DType::f32;
};

void expect_rows(const std::vector<ExpectedCollective>& got, const std::vector<Row>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto size = static_cast<std::int64_t>(element_size(expected[i].dtype));
    EXPECT_EQ(got[i].module, expected[i].module) << i;
    EXPECT_EQ(got[i].what, expected[i].what) << i;
    EXPECT_EQ(got[i].group, expected[i].group) << i;
    EXPECT_EQ(got[i].dtype, expected[i].dtype) << i;
    EXPECT_EQ(got[i].payload_bytes, expected[i].payload * size) << i << " " << got[i].module;
    EXPECT_EQ(got[i].own_bytes, expected[i].own * size) << i << " " << got[i].module;
  }
}

// Sequences of 5, 1, 4 and 2 tokens on 3 ranks: rank 0 has the first and the last, 7 rows; the others 1 and 4.
TEST(ClosedForm, OfAttentionBySequences) {
  RunOf what;
  what.plan = "attention_dp";
  what.mesh = Mesh{{{"tp", 3}}};
  what.lengths = {5, 1, 4, 2};
  what.settings = {DType::bf16, DType::f32, {}};
  const auto ran = run_of(what);
  const std::vector<std::int64_t> rows{7, 1, 4}, logits{107, 107, 106};
  for (int rank = 0; rank < 3; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::int64_t whole = 12 * kHidden, own = rows[r] * kHidden;
    std::vector<Row> expected{{"embed_tokens", "reduce_scatter", "tp", whole, whole}};
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string mlp = "layers." + std::to_string(layer) + ".mlp.";
      expected.push_back({mlp + "gate_proj", "all_gather", "tp", whole, own, DType::bf16});
      expected.push_back({mlp + "down_proj", "reduce_scatter", "tp", whole, whole});
    }
    expected.push_back({"lm_head", "all_gather", "tp", whole, own, DType::bf16});
    expected.push_back({"lm_head", "all_gather", "tp", 12 * kVocab, 12 * logits[r], DType::bf16});
    expect_rows(form(*ran, rank), expected);
  }
  expect_issued(*ran);
}

// One sequence, one token a step: all but one rank send and receive nothing of their own.
TEST(ClosedForm, OfStepsWithFewerTokensThanRanks) {
  for (const char* plan : {"attention_dp", "megatron_sp"}) {
    RunOf what;
    what.plan = plan;
    what.mesh = Mesh{{{"tp", 4}}};
    what.phase = Phase::decode;
    const auto ran = run_of(what);
    for (int rank = 0; rank < 4; ++rank) {
      std::int64_t gathers = 0;
      for (const ExpectedCollective& one : form(*ran, rank, 2)) {
        if (one.what != "all_gather" || one.payload_bytes != kHidden * 4) continue;
        EXPECT_EQ(one.own_bytes, rank == 0 ? kHidden * 4 : 0) << plan;
        ++gathers;
      }
      EXPECT_GE(gathers, kLayers + 1);
    }
    expect_issued(*ran);
  }
}

// 9 tokens on 2 x 2 ranks: 24 of 48 features of the stream, 4 of 8 heads and 2 of 4 kv heads on each.
TEST(ClosedForm, OfWeightsCutOnTwoAxes) {
  RunOf what;
  what.plan = "tp2d";
  what.mesh = Mesh{{{"tpx", 2}, {"tpy", 2}}};
  const auto ran = run_of(what);
  const Config& config = ran->model.config();
  const std::int64_t stream = 9 * kHidden / 2, inner = 9 * config.intermediate_size / 2;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<Row> expected{{"embed_tokens", "all_reduce", "tpy", stream, stream}};
    const auto sum = [&](const std::string& module, const std::string& axis, std::int64_t elements) {
      expected.push_back({module, "all_reduce", axis, elements, elements});
    };
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      sum(layer + "input_layernorm", "tpx", 9);
      sum(layer + "self_attn.q_proj", "tpx", 9 * config.q_size() / 2);
      sum(layer + "self_attn.k_proj", "tpx", 9 * config.kv_size() / 2);
      sum(layer + "self_attn.v_proj", "tpx", 9 * config.kv_size() / 2);
      sum(layer + "self_attn.o_proj", "tpy", stream);
      sum(layer + "post_attention_layernorm", "tpx", 9);
      sum(layer + "mlp.gate_proj", "tpx", inner);
      sum(layer + "mlp.up_proj", "tpx", inner);
      sum(layer + "mlp.down_proj", "tpy", stream);
    }
    sum("norm", "tpx", 9);
    sum("lm_head", "tpx", 9 * kVocab / 2);
    expected.push_back({"lm_head", "all_gather", "tpy", 9 * kVocab, 9 * kVocab / 2});
    expect_rows(form(*ran, rank), expected);
  }
  expect_issued(*ran);
}

// A plan of somebody's own: sequences over dp and, inside, heads exchanged for tokens over cp. Its `.out` and `.in` points
// hold values whose rows were cut far earlier.
constexpr const char* kUlysses = R"plan({ "name": "ulysses", "mesh": ["dp", "cp"], "weights": {},
  "collectives": {
    "embed_tokens.out": ["slice(sequence, dp)", "slice(tokens, cp)"],
    "layers.*.self_attn.q_proj.out": "all_to_all(head, tokens, cp)",
    "layers.*.self_attn.{k,v}_proj.out": "all_to_all(kv_head, tokens, cp)",
    "layers.*.self_attn.o_proj.in": "all_to_all(tokens, head, cp)",
    "lm_head.in": "all_gather(tokens, cp)", "lm_head.out": "all_gather(sequence, dp)" } })plan";

TEST(ClosedForm, OfHeadsExchangedForTokensWithinSequences) {
  RunOf what;
  what.plan = kUlysses;
  what.mesh = Mesh{{{"dp", 2}, {"cp", 2}}};
  what.lengths = {5, 3, 2};  // dp 0 has 7 rows, 4 + 3 by cp; dp 1 has 3, 2 + 1
  const auto ran = run_of(what);
  const Config& config = ran->model.config();
  const std::vector<std::int64_t> home{7, 7, 3, 3}, own{4, 3, 2, 1};
  for (int rank = 0; rank < 4; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    std::vector<Row> expected;
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const std::string at = "layers." + std::to_string(i) + ".self_attn.";
      const auto exchange = [&](const char* module, std::int64_t features, std::int64_t mine) {
        expected.push_back({at + module, "all_to_all", "cp", home[r] * features, mine});
      };
      exchange("q_proj", config.q_size(), own[r] * config.q_size());
      exchange("k_proj", config.kv_size(), own[r] * config.kv_size());
      exchange("v_proj", config.kv_size(), own[r] * config.kv_size());
      // Back: the whole of the heads, for all tokens of the home, in exchange for half of them.
      exchange("o_proj", config.q_size(), home[r] * config.q_size() / 2);
    }
    expected.push_back({"lm_head", "all_gather", "cp", home[r] * kHidden, own[r] * kHidden});
    expected.push_back({"lm_head", "all_gather", "dp", 10 * kVocab, home[r] * kVocab});
    expect_rows(form(*ran, rank), expected);
  }
  expect_issued(*ran);
}

// What modules read isn't what is added: the norm's gather leaves the stream cut.
TEST(ClosedForm, OfAStreamCutByFeatures) {
  RunOf what;
  what.plan = R"plan({ "name": "features", "mesh": ["tp"],
    "weights": { "embed_tokens": {"tp": "shard(features)"}, "layers.*.self_attn.o_proj": {"tp": "shard(out)"},
                 "layers.*.mlp.down_proj": {"tp": "shard(out)"} },
    "collectives": { "layers.*.*_layernorm.in": "all_gather(features, tp)", "norm.in": "all_gather(features, tp)" } })plan";
  what.mesh = Mesh{{{"tp", 5}}};
  const auto ran = run_of(what);
  const std::vector<std::int64_t> features{10, 10, 10, 9, 9};
  for (int rank = 0; rank < 5; ++rank) {
    const std::vector<ExpectedCollective> got = form(*ran, rank);
    ASSERT_EQ(got.size(), 2u * kLayers + 1u);
    for (const ExpectedCollective& one : got) {
      EXPECT_EQ(one.payload_bytes, 9 * kHidden * 4);
      EXPECT_EQ(one.own_bytes, 9 * features[static_cast<std::size_t>(rank)] * 4);
    }
  }
  expect_issued(*ran);
}

// One phase's steps are not the other's.
TEST(ClosedForm, OfAPhasesOwnSteps) {
  RunOf what;
  what.plan = R"plan({ "name": "phases", "mesh": ["tp"],
    "weights": { "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
    "collectives": { "layers.*.mlp.down_proj.out": ["reduce_scatter(sum, tokens, tp)", "all_gather(tokens, tp)"] },
    "phase": { "decode": { "layers.*.mlp.down_proj.out": "all_reduce(sum, tp)" } } })plan";
  what.mesh = Mesh{{{"tp", 3}}};
  what.phase = Phase::decode;
  const auto ran = run_of(what);
  EXPECT_EQ(form(*ran, 0, 0).size(), 2u * kLayers);
  EXPECT_EQ(form(*ran, 0, 1).size(), 1u * kLayers);
  expect_issued(*ran);
}

// Caught: a collective of the right kind and place over rows of another cut.
TEST(ClosedForm, ABytesTooManyOnOneRankIsCaught) {
  RunOf what;
  what.plan = "attention_dp";
  what.mesh = Mesh{{{"tp", 2}}};
  what.lengths = {4, 3, 2};
  const auto ran = run_of(what);
  expect_issued(*ran);
  for (LedgerRecord& record : ran->result.ledgers[1]) {
    if (record.kind != LedgerRecord::Kind::collective || record.what != "all_gather") continue;
    record.own_bytes = 4 * kHidden * 4;  // a balanced cut of the 9 rows, not sequence 1
    break;
  }
  const AuditResult result = audit(ran->model, ran->program.plan, ran->settings, ran->steps,
                                   ran->result.ledgers, ran->meta);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.ranks, std::vector<int>{1});
  EXPECT_EQ(result.site, "layers.0.mlp.gate_proj.in");
}

}  // namespace
}  // namespace shardcheck::testing
