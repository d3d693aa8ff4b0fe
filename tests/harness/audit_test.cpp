// SPDX-License-Identifier: Apache-2.0
#include "harness/audit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/harness/ran_program.hpp"

namespace shardcheck::testing {
namespace {

using ::testing::HasSubstr;

AuditResult audit_of(const RanProgram& ran) {
  return audit(ran.model, ran.program.plan, ran.settings, ran.steps, ran.result.ledgers, ran.meta);
}

std::vector<ExpectedCollective> form(const RanProgram& ran, int rank = 0, std::size_t step = 0) {
  return closed_form(ran.model, ran.program.plan, ran.settings, std::span(ran.steps).first(step + 1), rank);
}

/// Index of the n-th collective of a ledger.
std::size_t nth_collective(const Ledger& ledger, int n) {
  for (std::size_t i = 0; i < ledger.size(); ++i) {
    if (ledger[i].kind == LedgerRecord::Kind::collective && n-- == 0) return i;
  }
  throw std::logic_error("the ledger has fewer collectives");
}

// tiny-llama: 3 layers, hidden 48, vocabulary 320. 9 tokens.
TEST(Audit, ClosedFormOfMegatronByHand) {
  struct Wire {
    DType storage, wire;
    std::int64_t wire_bytes, storage_bytes;
  };
  for (const Wire& dtype : std::vector<Wire>{{DType::f64, DType::f64, 8, 8},
                                             {DType::f32, DType::f32, 4, 4},
                                             {DType::bf16, DType::bf16, 2, 2},
                                             {DType::bf16, DType::f32, 4, 2}}) {
    for (const int tp : {2, 3, 4}) {
      RunOf what;
      what.mesh = Mesh{{{"tp", tp}}};
      what.settings = {dtype.storage, dtype.wire, {}};
      const auto ran = run_of(what);
      for (int rank = 0; rank < tp; ++rank) {
        const std::vector<ExpectedCollective> expected = form(*ran, rank);
        ASSERT_EQ(expected.size(), 1u + 2u * 3u + 1u);
        EXPECT_EQ(expected.front().module, "embed_tokens");
        for (std::size_t i = 0; i + 1 < expected.size(); ++i) {
          EXPECT_EQ(expected[i].what, "all_reduce");
          EXPECT_EQ(expected[i].group, "tp");
          EXPECT_EQ(expected[i].dtype, dtype.wire);
          EXPECT_EQ(expected[i].payload_bytes, 9 * 48 * dtype.wire_bytes);
          EXPECT_EQ(expected[i].own_bytes, 9 * 48 * dtype.wire_bytes);
        }
        EXPECT_EQ(expected[1].module, "layers.0.self_attn.o_proj");
        EXPECT_EQ(expected[6].module, "layers.2.mlp.down_proj");
        const ExpectedCollective& gather = expected.back();
        EXPECT_EQ(gather.what, "all_gather");
        EXPECT_EQ(gather.dtype, dtype.storage);
        EXPECT_EQ(gather.payload_bytes, 9 * 320 * dtype.storage_bytes);
        const std::int64_t own = 320 / tp + (rank < 320 % tp ? 1 : 0);
        EXPECT_EQ(gather.own_bytes, 9 * own * dtype.storage_bytes);
      }
      const AuditResult result = audit_of(*ran);
      EXPECT_TRUE(result.passed) << result.problem;
      EXPECT_EQ(result.collectives, 8);
      EXPECT_EQ(result.payload_bytes, 7 * 9 * 48 * dtype.wire_bytes + 9 * 320 * dtype.storage_bytes);
    }
  }
}

// tiny-gpt2: 2 layers, hidden 48, vocabulary 211; biases move nothing.
TEST(Audit, ClosedFormOfGpt2ByHand) {
  RunOf what;
  what.model = "tiny-gpt2";
  what.mesh = Mesh{{{"tp", 4}}};
  what.phase = Phase::decode;  // 9 tokens: 6 in the prompt, then 3 steps of one
  const auto ran = run_of(what);
  ASSERT_EQ(ran->steps.size(), 4u);
  std::int64_t calls = 0, bytes = 0;
  for (const std::int64_t tokens : {6, 1, 1, 1}) {
    calls += 1 + 2 * 2 + 1;
    bytes += (5 * 48 + 211) * tokens * 4;
  }
  const AuditResult result = audit_of(*ran);
  EXPECT_TRUE(result.passed) << result.problem;
  EXPECT_EQ(result.collectives, calls);
  EXPECT_EQ(result.payload_bytes, bytes);
  const std::vector<ExpectedCollective> step = form(*ran, 1, 2);
  ASSERT_EQ(step.size(), 6u);
  EXPECT_EQ(step[0].module, "wte");
  EXPECT_EQ(step[0].payload_bytes, 48 * 4);
  EXPECT_EQ(step[1].module, "h.0.attn.c_proj");
  EXPECT_EQ(step[4].module, "h.1.mlp.c_proj");
  EXPECT_EQ(step[5].own_bytes, 53 * 4);  // 211 rows on 4 ranks: 53, 53, 53, 52
}

// 9 tokens on 4 ranks: 3, 2, 2, 2. A scatter's payload is its input, a gather's its output.
TEST(Audit, ClosedFormOfSequenceParallelByHand) {
  RunOf what;
  what.plan = kSequenceParallel;
  what.mesh = Mesh{{{"tp", 4}}};
  what.settings = {DType::bf16, DType::f32, {}};
  const auto ran = run_of(what);
  const std::vector<ExpectedCollective> expected = form(*ran, 0);
  ASSERT_EQ(expected.size(), 1u + 4u * 3u + 2u);
  const std::vector<std::string> layer{"all_gather", "reduce_scatter", "all_gather",
                                       "reduce_scatter"};
  EXPECT_EQ(expected[0].what, "reduce_scatter");
  for (std::size_t i = 1; i <= 12; ++i) EXPECT_EQ(expected[i].what, layer[(i - 1) % 4]);
  for (std::size_t i = 0; i <= 12; ++i) {
    const bool scatter = expected[i].what == "reduce_scatter";
    EXPECT_EQ(expected[i].payload_bytes, 9 * 48 * (scatter ? 4 : 2)) << i;
    EXPECT_EQ(expected[i].own_bytes, scatter ? 9 * 48 * 4 : 3 * 48 * 2) << i;
  }
  EXPECT_EQ(form(*ran, 3)[1].own_bytes, 2 * 48 * 2);
  EXPECT_EQ(expected[13].payload_bytes, 9 * 48 * 2);
  EXPECT_EQ(expected[14].payload_bytes, 9 * 320 * 2);
  const AuditResult result = audit_of(*ran);
  EXPECT_TRUE(result.passed) << result.problem;
}

// Record for record: name, kind, group, dtype, payload, own bytes, flops, moved bytes, phase, step.
TEST(Audit, CpuLedgerEqualsMetaLedger) {
  for (const std::string model : {"tiny-llama", "tiny-gpt2"}) {
    for (const int tp : {1, 2, 3, 4}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        RunOf what;
        what.model = model;
        what.mesh = Mesh{{{"tp", tp}}};
        what.settings = {DType::bf16, DType::bf16, {}};
        what.phase = phase;
        what.lengths = {5, 2, 8};
        what.chunk = 3;
        const auto ran = run_of(what);
        for (std::size_t rank = 0; rank < static_cast<std::size_t>(tp); ++rank) {
          const Ledger& mine = ran->result.ledgers[rank];
          const Ledger& shapes = ran->meta[rank];
          ASSERT_EQ(mine.size(), shapes.size());
          EXPECT_FALSE(mine.empty());
          for (std::size_t i = 0; i < mine.size(); ++i) {
            EXPECT_TRUE(mine[i] == shapes[i]) << model << " tp " << tp << ": record " << i << ", "
                                              << mine[i].what << " at " << mine[i].site;
          }
        }
        const AuditResult result = audit_of(*ran);
        EXPECT_TRUE(result.passed) << result.problem;
      }
    }
  }
}

// A group of one moves nothing and records nothing.
TEST(Audit, OneRankHasNoCollectives) {
  RunOf what;
  what.mesh = Mesh{{{"tp", 1}}};
  const auto ran = run_of(what);
  EXPECT_TRUE(form(*ran).empty());
  const AuditResult result = audit_of(*ran);
  EXPECT_TRUE(result.passed);
  EXPECT_EQ(result.collectives, 0);
  for (const LedgerRecord& record : ran->result.ledgers[0])
    EXPECT_EQ(record.kind, LedgerRecord::Kind::op);
}

// ---- what must be caught ----

std::unique_ptr<RanProgram> sample() {
  RunOf what;
  what.mesh = Mesh{{{"tp", 3}}};
  what.phase = Phase::decode;
  return run_of(what);
}

TEST(Audit, CatchesADroppedCollective) {
  const auto ran = sample();
  Ledger& ledger = ran->result.ledgers[1];
  const std::size_t at = nth_collective(ledger, 2);
  const std::string gone = ledger[at].site;
  ledger.erase(ledger.begin() + static_cast<std::ptrdiff_t>(at));
  const AuditResult result = audit_of(*ran);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.ranks, std::vector<int>{1});
  EXPECT_EQ(gone, "layers.0.mlp.down_proj");
  EXPECT_THAT(result.problem, HasSubstr("rank 1"));
  EXPECT_THAT(
      result.problem,
      HasSubstr(
          "the plan asks for all_reduce over tp of 1152 bytes (f32) at layers.0.mlp.down_proj"));
}

TEST(Audit, CatchesTheLastCollectiveMissing) {
  const auto ran = sample();
  Ledger& ledger = ran->result.ledgers[2];
  while (ledger.back().kind != LedgerRecord::Kind::collective) ledger.pop_back();
  ledger.pop_back();
  const AuditResult result = audit_of(*ran);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.site, "lm_head");
  EXPECT_THAT(result.problem, HasSubstr("nothing more was issued"));
}

TEST(Audit, CatchesADuplicatedCollective) {
  const auto ran = sample();
  for (Ledger& ledger : ran->result.ledgers) {
    const std::size_t at = nth_collective(ledger, 3);
    ledger.insert(ledger.begin() + static_cast<std::ptrdiff_t>(at), ledger[at]);
  }
  const AuditResult result = audit_of(*ran);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(result.site, "layers.1.self_attn.o_proj");
}

TEST(Audit, CatchesOneTooMany) {
  const auto ran = sample();
  Ledger& ledger = ran->result.ledgers[0];
  ledger.push_back(ledger[nth_collective(ledger, 0)]);
  const AuditResult result = audit_of(*ran);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.ranks, std::vector<int>{0});
  EXPECT_THAT(result.problem, HasSubstr("that the plan doesn't ask for"));
}

TEST(Audit, CatchesEveryFieldOfACollective) {
  using Change = std::function<void(LedgerRecord&)>;
  const std::vector<std::pair<std::string, Change>> changes{
      {"kind", [](LedgerRecord& r) { r.what = "reduce_scatter"; }},
      {"group", [](LedgerRecord& r) { r.group = "dp"; }},
      {"dtype", [](LedgerRecord& r) { r.dtype = DType::bf16; }},
      {"payload", [](LedgerRecord& r) { r.payload_bytes += 4; }},
      {"own bytes", [](LedgerRecord& r) { r.own_bytes -= 4; }},
      {"site", [](LedgerRecord& r) { r.site = "layers.0.self_attn.o_projection"; }},
      {"phase", [](LedgerRecord& r) { r.phase = Phase::decode; }},
      {"step", [](LedgerRecord& r) { r.step = 1; }},
      {"group size", [](LedgerRecord& r) { r.group_size = 2; }},
      {"order", [](LedgerRecord& r) { r.reduction.order = ReduceOrder::tree; }}};
  for (const auto& [what, change] : changes) {
    const auto ran = sample();
    Ledger& ledger = ran->result.ledgers[2];
    change(ledger[nth_collective(ledger, 1)]);
    const AuditResult result = audit_of(*ran);
    EXPECT_FALSE(result.passed) << what;
    EXPECT_EQ(result.ranks, std::vector<int>{2}) << what;
    EXPECT_FALSE(result.site.empty()) << what;
  }
}

TEST(Audit, CatchesEveryFieldOfAnOp) {
  using Change = std::function<void(LedgerRecord&)>;
  for (const Change& change : std::vector<Change>{
           [](LedgerRecord& r) { r.flops += 2; }, [](LedgerRecord& r) { ++r.moved_bytes; },
           [](LedgerRecord& r) { r.what = "bias"; }, [](LedgerRecord& r) { r.site += "x"; },
           [](LedgerRecord& r) { r.dtype = DType::f64; }, [](LedgerRecord& r) { r.step = 7; }}) {
    const auto ran = sample();
    LedgerRecord& record = ran->result.ledgers[1][5];
    ASSERT_EQ(record.kind, LedgerRecord::Kind::op);
    change(record);
    const AuditResult result = audit_of(*ran);
    EXPECT_FALSE(result.passed);
    EXPECT_EQ(result.ranks, std::vector<int>{1});
    EXPECT_THAT(result.problem, HasSubstr("differs between the device and meta"));
  }
}

TEST(Audit, CatchesAnOpThatOnlyOneSideHas) {
  const auto ran = sample();
  ran->meta[0].push_back(ran->meta[0].front());
  EXPECT_FALSE(audit_of(*ran).passed);
  const auto other = sample();
  other->result.ledgers[0].push_back(other->result.ledgers[0].front());
  EXPECT_FALSE(audit_of(*other).passed);
}

}  // namespace
}  // namespace shardcheck::testing
