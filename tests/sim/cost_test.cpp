// SPDX-License-Identifier: Apache-2.0
#include "sim/cost.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "harness/cost_report.hpp"
#include "model/error.hpp"
#include "sim/algorithm.hpp"

namespace shardcheck::sim {
namespace {

using testing::HasSubstr;

LedgerRecord op(std::string site, std::string what, std::int64_t flop_count, std::int64_t moved,
                Phase phase = Phase::prefill, int step = 0) {
  LedgerRecord record;
  record.site = std::move(site);
  record.what = std::move(what);
  record.dtype = DType::bf16;
  record.flops = flop_count;
  record.moved_bytes = moved;
  record.phase = phase;
  record.step = step;
  return record;
}

LedgerRecord collective(std::string site, CollectiveKind kind, int ranks, std::int64_t payload,
                        std::int64_t own, Phase phase = Phase::prefill, int step = 0) {
  LedgerRecord record = op(std::move(site), std::string(name(kind)), 0, 0, phase, step);
  record.kind = LedgerRecord::Kind::collective;
  record.group = "tp";
  record.group_size = ranks;
  record.payload_bytes = payload;
  record.own_bytes = own;
  return record;
}

Mesh tp(int size) { return Mesh{{{"tp", size}}}; }

// Ledgers with the counts and sizes of a Llama-3-70B in bf16: 80 layers, hidden 8192, ffn 28672, vocabulary 128256,
// 64 heads and 8 kv heads of 128. Attention's flops are those of the scores and of the weighted sum.
std::vector<Ledger> llama_70b(int ranks, std::int64_t tokens, std::int64_t context, Phase phase) {
  const std::int64_t d = 8192, f = 28672, v = 128256, kv = 1024, s = 2;
  std::vector<Ledger> ledgers;
  for (int rank = 0; rank < ranks; ++rank) {
    Ledger ledger;
    const auto part = [&](std::int64_t n) { return n / ranks + (rank < n % ranks ? 1 : 0); };
    const auto linear = [&](const std::string& site, std::int64_t in, std::int64_t out) {
      ledger.push_back(
          op(site, "linear", 2 * tokens * in * out, s * (in * out + tokens * (in + out)), phase));
    };
    const auto reduce = [&](const std::string& site) {
      if (ranks > 1) {
        const std::int64_t size = tokens * d * s;
        ledger.push_back(collective(site, CollectiveKind::all_reduce, ranks, size, size, phase));
      }
    };
    ledger.push_back(op("embed_tokens", "embedding", 0, s * tokens * d, phase));
    reduce("embed_tokens");
    for (int layer = 0; layer < 80; ++layer) {
      const std::string at = "layers." + std::to_string(layer);
      ledger.push_back(
          op(at + ".input_layernorm", "rms_norm", 4 * tokens * d, 2 * s * tokens * d, phase));
      linear(at + ".self_attn.q_proj", d, part(d));
      linear(at + ".self_attn.k_proj", d, part(kv));
      linear(at + ".self_attn.v_proj", d, part(kv));
      ledger.push_back(op(at + ".self_attn.attn", "attention", 4 * tokens * context * part(d),
                          s * (2 * context * part(kv) + 2 * tokens * part(d)), phase));
      linear(at + ".self_attn.o_proj", part(d), d);
      reduce(at + ".self_attn.o_proj");
      linear(at + ".mlp.gate_proj", d, part(f));
      linear(at + ".mlp.up_proj", d, part(f));
      linear(at + ".mlp.down_proj", part(f), d);
      reduce(at + ".mlp.down_proj");
    }
    linear("lm_head", d, part(v));
    if (ranks > 1) {
      ledger.push_back(collective("lm_head", CollectiveKind::all_gather, ranks, tokens * v * s,
                                  tokens * part(v) * s, phase));
    }
    ledgers.push_back(std::move(ledger));
  }
  return ledgers;
}

std::vector<MemoryNeed> needs(int ranks, double weights, double kv) {
  return std::vector<MemoryNeed>(static_cast<std::size_t>(ranks),
                                 {Bytes(weights / ranks), Bytes(kv / ranks)});
}

TEST(Roofline, ByHand) {
  const Gpu gpu = load_gpu("h100");  // 989.4 TFLOP/s bf16, 66.9 f32, 3350 GB/s
  const RooflineTime busy = roofline(Flops(989.4e12), Bytes(3.35e9), DType::bf16, gpu);
  EXPECT_DOUBLE_EQ(busy.compute.value, 1.0);
  EXPECT_DOUBLE_EQ(busy.memory.value, 1e-3);
  EXPECT_EQ(busy.limited_by(), LimitedBy::compute);
  EXPECT_DOUBLE_EQ(busy.total().value, 1.0);
  const RooflineTime moving = roofline(Flops(1e9), Bytes(6.7e9), DType::f32, gpu);
  EXPECT_EQ(moving.limited_by(), LimitedBy::memory);
  EXPECT_DOUBLE_EQ(moving.total().value, 2e-3);
  EXPECT_DOUBLE_EQ(moving.compute.value, 1e9 / 66.9e12);
  EXPECT_EQ(roofline(Flops(0), Bytes(0), DType::i64, gpu).total(), Seconds(0));
}

TEST(Roofline, AMissingPeakIsTheUsersFileToMend) {
  Gpu gpu = load_gpu("h100");
  gpu.peak.erase(DType::f64);
  EXPECT_THROW(roofline(Flops(1), Bytes(1), DType::f64, gpu), InputError);
  EXPECT_NO_THROW(roofline(Flops(0), Bytes(1), DType::f64, gpu));
}

TEST(Memory, TheFullestRankDecidesAndTheReserveCounts) {
  const Gpu gpu = load_gpu("h100");  // 80 GB
  const std::vector<MemoryNeed> ranks{
      {Bytes(60e9), Bytes(11e9)}, {Bytes(60e9), Bytes(13e9)}, {Bytes(1e9), Bytes(0)}};
  const MemoryUse tight = memory_use(ranks, gpu, 0.1);
  EXPECT_EQ(tight.rank, 1);
  EXPECT_FALSE(tight.fits());
  EXPECT_DOUBLE_EQ(tight.free().value, -1e9);
  EXPECT_TRUE(memory_use(ranks, gpu, 0.05).fits());
  EXPECT_TRUE(memory_use(std::vector<MemoryNeed>{{Bytes(72e9), Bytes(0)}}, gpu, 0.1).fits());
}

TEST(Fold, CountsEqualRecordsOnceAndKeepsPhasesApart) {
  const std::vector<Ledger> ledgers = llama_70b(3, 7, 7, Phase::prefill);
  std::vector<Ledger> mixed = ledgers;
  for (Ledger& ledger : mixed) {
    ledger.push_back(op("x", "linear", 1, 1, Phase::decode, 0));
    ledger.push_back(op("x", "linear", 1, 1, Phase::decode, 1));
  }
  const RunLoad run = fold(tp(3), Phase::prefill, mixed, needs(3, 0, 0));
  EXPECT_EQ(run.steps, 1);
  ASSERT_EQ(run.collectives.size(), 2u);  // 161 equal all_reduces and one gather
  EXPECT_EQ(run.collectives[1].call.largest_part, bytes(7 * 42752 * 2));
  std::int64_t ops = 0, calls = 0;
  for (const Uses& use : run.ranks[1].ops) ops += use.count;
  for (const Uses& use : run.ranks[1].collectives) calls += use.count;
  EXPECT_EQ(calls, 162);
  EXPECT_EQ(ops + calls, static_cast<std::int64_t>(ledgers[1].size()));
  EXPECT_LT(run.ops.size(), 40u);
  EXPECT_EQ(fold(tp(3), Phase::decode, mixed, needs(3, 0, 0)).steps, 2);
  EXPECT_THROW(fold(tp(4), Phase::prefill, ledgers, needs(4, 0, 0)), std::invalid_argument);
  std::vector<Ledger> unknown(1);
  unknown[0].push_back(collective("x", CollectiveKind::send, 2, 1, 1));
  unknown[0][0].what = "teleport";
  EXPECT_THROW(fold(tp(1), Phase::prefill, unknown, needs(1, 0, 0)), std::invalid_argument);
}

TEST(Cost, EqualsTheSumOverTheLedgerRecordByRecord) {
  const Gpu gpu = load_gpu("a100");
  const AlphaBetaModel model;
  for (const char* name : {"nvlink3-nvswitch2", "pcie4-x16", "tcp-25g"}) {
    const Link link = load_link(name);
    const std::vector<Ledger> ledgers = llama_70b(5, 33, 33, Phase::prefill);
    const CostRow row = cost(fold(tp(5), Phase::prefill, ledgers, needs(5, 141e9, 1e9)), link, gpu,
                             model);
    double compute = 0.0, communication = 0.0, traffic = 0.0;
    std::int64_t records = 0;
    for (const LedgerRecord& r : ledgers[static_cast<std::size_t>(row.rank)]) {
      ++records;
      if (r.kind == LedgerRecord::Kind::op) {
        compute += roofline(flops(r.flops), bytes(r.moved_bytes), r.dtype, gpu).total().value;
        continue;
      }
      const bool gather = r.what == "all_gather";
      const CollectiveCall call{gather ? CollectiveKind::all_gather : CollectiveKind::all_reduce, 5,
                                bytes(r.payload_bytes), bytes(33 * 25652 * 2)};
      communication += cheapest(model.costs(call, link)).total().value;
      traffic += least_traffic(call, link).value;
    }
    // Sums of the same positive terms in another order: each addition loses at most half an ulp.
    const double rounding = static_cast<double>(records) * 0x1p-52;
    EXPECT_NEAR(row.compute.value, compute, compute * rounding) << name;
    EXPECT_NEAR(row.communication->value, communication, communication * rounding) << name;
    EXPECT_NEAR(row.traffic.value, traffic, traffic * rounding) << name;

    double terms = 0.0;
    for (const ComputeTerm& term : row.compute_terms) terms += term.time.value;
    EXPECT_NEAR(terms, row.compute.value, compute * rounding);
    double kinds = 0.0;
    for (const KindCost& kind : row.collectives) {
      EXPECT_GT(kind.time, kind.bound);
      double parts = 0.0;
      for (const CommunicationTerm& term : kind.terms) parts += term.time.value;
      EXPECT_NEAR(parts, kind.time.value, communication * rounding);
      kinds += kind.time.value;
    }
    EXPECT_NEAR(kinds, row.communication->value, communication * rounding);
    EXPECT_NEAR(row.share().value(), communication / (compute + communication), rounding);
  }
}

TEST(Cost, TheSlowestRankDecides) {
  const Gpu gpu = load_gpu("h100");
  std::vector<Ledger> ledgers = llama_70b(4, 16, 16, Phase::decode);
  const RunLoad even = fold(tp(4), Phase::decode, ledgers, needs(4, 0, 0));
  EXPECT_EQ(cost(even, load_link("nvlink4-nvswitch3"), gpu, AlphaBetaModel()).rank, 0);
  ledgers[2].push_back(op("late", "linear", 0, 3'350'000'000, Phase::decode));
  const RunLoad uneven = fold(tp(4), Phase::decode, ledgers, needs(4, 0, 0));
  const CostRow before = cost(even, load_link("nvlink4-nvswitch3"), gpu, AlphaBetaModel());
  const CostRow after = cost(uneven, load_link("nvlink4-nvswitch3"), gpu, AlphaBetaModel());
  EXPECT_EQ(after.rank, 2);
  EXPECT_NEAR((after.compute - before.compute).value, 1e-3, 1e-3 * 2000 * 0x1p-52);
}

TEST(Cost, ByAllReduceHoldsEachScheduleAloneAndTheCheapestIsLeast) {
  const RunLoad run = fold(tp(8), Phase::prefill, llama_70b(8, 4096, 4096, Phase::prefill),
                           needs(8, 0, 0));
  for (const Link& link : shipped_links()) {
    const CostRow row = cost(run, link, load_gpu("h100"), AlphaBetaModel());
    if (!row.problem.empty()) {
      EXPECT_LT(link.group_limit->value, 8) << link.name;
      EXPECT_FALSE(row.communication || row.total() || row.share()) << link.name;
      continue;
    }
    ASSERT_EQ(row.by_all_reduce.size(), 4u);
    EXPECT_EQ(row.by_all_reduce[0].algorithm, "ring");
    EXPECT_EQ(row.by_all_reduce[3].time.has_value(), link.switch_reduces) << link.name;
    EXPECT_EQ(row.by_all_reduce[1].time.has_value(), link.reaches_all_peers()) << link.name;
    bool named = false;
    for (const AlgorithmTime& time : row.by_all_reduce) {
      if (!time.time) continue;
      EXPECT_GE(*time.time, *row.communication * (1.0 - 400 * 0x1p-52)) << link.name;
      named = named || time.algorithm == row.cheapest_all_reduce();
    }
    EXPECT_TRUE(named) << link.name;
  }
}

TEST(Cost, APairHasNoTimeForFourAndSaysWhy) {
  const RunLoad run = fold(tp(4), Phase::prefill, llama_70b(4, 8, 8, Phase::prefill), needs(4, 0, 0));
  const CostRow row = cost(run, load_link("nvlink4-bridge"), load_gpu("h100"), AlphaBetaModel());
  EXPECT_EQ(row.problem, "connects at most 2 GPUs, the group tp has 4");
  EXPECT_GT(row.compute, Seconds(0));
}

TEST(Cost, OneRankCostsTheSameOnEveryLink) {
  const RunLoad run = fold(tp(1), Phase::decode, llama_70b(1, 1, 4096, Phase::decode),
                           needs(1, 141e9, 1e9));
  for (const char* link : {"tcp-10g", "nvlink5-nvls", "nvlink3-bridge"}) {
    const CostRow row = cost(run, load_link(link), load_gpu("b200"), AlphaBetaModel());
    EXPECT_EQ(row.communication, Seconds(0));
    EXPECT_EQ(row.share(), 0.0);
    EXPECT_EQ(row.traffic, Bytes(0));
    // One token reads all weights: 141.1 GB less the embedding's table, at 8 TB/s.
    EXPECT_NEAR(row.per_step()->value, (141.1e9 - 2.1e9) / 8e12, 0.02 * 141e9 / 8e12);
  }
}

TEST(Cost, SeveralDecodeStepsAreAveraged) {
  std::vector<Ledger> one(1), three(1);
  for (int step = 0; step < 3; ++step)
    three[0].push_back(op("a", "linear", 10, 3'350'000, Phase::decode, step));
  one[0].push_back(op("a", "linear", 10, 3'350'000, Phase::decode, 5));
  const auto tpot = [&](const std::vector<Ledger>& ledgers) {
    return cost(fold(tp(1), Phase::decode, ledgers, needs(1, 0, 0)), load_link("tcp-10g"),
                load_gpu("h100"), AlphaBetaModel())
        .per_step()
        ->value;
  };
  EXPECT_DOUBLE_EQ(tpot(one), tpot(three));
}

class CostReportTest : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<RunLoad> runs;
    const auto start = std::chrono::steady_clock::now();
    for (const int ranks : {1, 2, 4, 8}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const std::int64_t tokens = phase == Phase::prefill ? 4096 : 1;
        runs.push_back(fold(tp(ranks), phase, llama_70b(ranks, tokens, 4096, phase),
                            needs(ranks, 141.1e9, 1.342e9)));
      }
    }
    report_.model = "llama-3-70b";
    report_.plan = "megatron";
    report_.dtype = report_.wire = "bf16";
    report_.batch = 1;
    report_.sequence = 4096;
    report_.gpu = load_gpu("h100");
    report_.links = shipped_links();
    const AlphaBetaModel model;
    report_.algorithm_constants = model.constants();
    report_.rows = costs(runs, report_.links, report_.gpu, model);
    table_ = cost_table(report_);
    json_ = cost_json(report_);
    took_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  CostReport report_;
  std::string table_, json_;
  double took_ = 0.0;
};

TEST_F(CostReportTest, AllLinksTakeFarLessThanASecond) {
  ASSERT_EQ(report_.rows.size(), 8 * report_.links.size());
#ifdef NDEBUG
  EXPECT_LT(took_, 1.0);
#endif
  RecordProperty("milliseconds", static_cast<int>(took_ * 1e3));
}

TEST_F(CostReportTest, TheTableIsAlignedAndNamesEveryLinkInEveryRun) {
  std::istringstream lines(table_);
  std::string line;
  std::size_t at = 0, rows = 0;
  while (std::getline(lines, line)) {
    if (line.starts_with("link ")) at = line.find("mesh");
    if (at > 0 && line.find("tp=") != std::string::npos) {
      ++rows;
      EXPECT_EQ(line.find("tp="), at) << line;
    }
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
  EXPECT_EQ(rows, 2 + 6 * report_.links.size());
  for (const char* text :
       {"TTFT", "TPOT", "ring", "one_shot", "two_shot", "nvls", "cheapest", "bytes/rank", "fits",
        "peak.bf16 989.4 TFLOP/s (spec)", "memory.reserve 0.1 (assumed)", "lower bound"}) {
    EXPECT_THAT(table_, HasSubstr(text));
  }
  EXPECT_THAT(table_, HasSubstr("connects at most 2 GPUs, the group tp has 8"));
  EXPECT_THAT(table_, HasSubstr("no, 70.4 GB short"));  // 141.1 + 1.342 + 8 of 80 GB
}

TEST_F(CostReportTest, TheJsonHoldsEveryRowAndEverySource) {
  const auto json = nlohmann::json::parse(json_);
  EXPECT_EQ(json.at("schema"), "shardcheck.cost/1");
  EXPECT_EQ(json.at("rows").size(), report_.rows.size());
  EXPECT_EQ(json.at("links").size(), report_.links.size());
  std::size_t constants = 0;
  const auto check = [&](const nlohmann::json& list) {
    for (const auto& constant : list) {
      EXPECT_FALSE(constant.at("source").get<std::string>().empty());
      EXPECT_TRUE(constant.contains("kind") && constant.contains("value") && constant.contains("name"));
      ++constants;
    }
  };
  for (const auto& link : json.at("links")) check(link.at("constants"));
  check(json.at("gpu").at("constants"));
  check(json.at("algorithm_constants"));
  EXPECT_GT(constants, 39u * 5u);
  for (const auto& row : json.at("rows")) {
    EXPECT_EQ(row.at("problem").is_null(), row.at("communication_s").is_number());
    EXPECT_EQ(row.at("ttft_s").is_number(),
              row.at("problem").is_null() && row.at("phase") == "prefill");
    EXPECT_EQ(row.at("tpot_s").is_number(),
              row.at("problem").is_null() && row.at("phase") == "decode");
    if (row.at("problem").is_null()) {
      EXPECT_EQ(row.at("total_s").get<double>(),
                row.at("compute_s").get<double>() + row.at("communication_s").get<double>());
      for (const auto& kind : row.at("collectives")) {
        EXPECT_GE(kind.at("time_s").get<double>(), kind.at("bound_s").get<double>());
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::sim
