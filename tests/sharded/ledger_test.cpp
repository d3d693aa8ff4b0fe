// SPDX-License-Identifier: Apache-2.0
// What a run of megatron leaves in the ledger: its collectives in closed form, its work split without loss, and the same
// records from shapes alone.
#include <gtest/gtest.h>

#include "tests/sharded/program_run.hpp"

namespace shardcheck {
namespace {

RunSetup bf16_over_f32(const char* device = "cpu", const char* world = "threads") {
  RunSetup setup;
  setup.settings = {DType::bf16, DType::f32, {ReduceOp::sum, ReduceOrder::two_shot, HopRounding::wire}};
  setup.device = device;
  setup.world = world;
  return setup;
}

std::vector<Step> prefill_and_decode(std::int64_t vocab) {
  return {prefill({5, 1, 17}, vocab),
          {Phase::prefill, 1, {{1, 1, 3}}, {7, 0, vocab - 1}},
          {Phase::decode, 0, {{0, 5, 1}, {1, 4, 0}, {2, 17, 1}}, {3, 11}}};
}

Ledger collectives(const Ledger& ledger) {
  Ledger found;
  for (const LedgerRecord& record : ledger) {
    if (record.kind == LedgerRecord::Kind::collective) found.push_back(record);
  }
  return found;
}

TEST(Ledger, HoldsTwoSumsALayerOneForTheEmbeddingAndOneGather) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const std::vector<Step> steps = prefill_and_decode(257);
  const Ran ran = run(model, megatron(), line(3), steps, ops, bf16_over_f32());
  for (std::size_t rank = 0; rank < 3; ++rank) {
    const Ledger got = collectives(ran.result.ledgers[rank]);
    ASSERT_EQ(got.size(), steps.size() * (1 + 2 * 2 + 1));
    std::size_t at = 0;
    for (const Step& step : steps) {
      const std::vector<std::string> sites{"embed_tokens",           "layers.0.self_attn.o_proj",
                                           "layers.0.mlp.down_proj", "layers.1.self_attn.o_proj",
                                           "layers.1.mlp.down_proj", "lm_head"};
      for (const std::string& site : sites) {
        const LedgerRecord& record = got[at++];
        const bool gather = site == "lm_head";
        EXPECT_EQ(record.site, site);
        EXPECT_EQ(record.what, gather ? "all_gather" : "all_reduce");
        EXPECT_EQ(record.group, "tp");
        EXPECT_EQ(record.group_size, 3);
        EXPECT_EQ(record.phase, step.phase);
        EXPECT_EQ(record.step, step.index);
        EXPECT_EQ(record.dtype, gather ? DType::bf16 : DType::f32);  // storage, wire
        const std::int64_t whole = step.tokens() * (gather ? 257 * 2 : 40 * 4);
        const std::int64_t own = gather ? step.tokens() * (rank < 2 ? 86 : 85) * 2 : whole;
        EXPECT_EQ(record.payload_bytes, whole);
        EXPECT_EQ(record.own_bytes, own);
        if (!gather) {
          EXPECT_EQ(record.reduction,
                    (ReduceSpec{ReduceOp::sum, ReduceOrder::two_shot, HopRounding::wire}));
        }
        EXPECT_EQ(record.flops, 0);
      }
    }
  }
}

TEST(Ledger, IsTheSameRecordForRecordOnShapesAlone) {
  const Registry ops = builtin_ops();
  for (const SmallModel& shape : {SmallModel{}, SmallModel{"gpt2", 5, 5, 8, 40, 53, 83, 2},
                                  SmallModel{"mistral", 4, 2, 4, 20, 27, 50, 2, false, false, 3}}) {
    const Model model = make_model(shape);
    const Model bare(model.config(), nullptr);
    const std::vector<Step> steps = prefill_and_decode(model.config().vocab_size);
    for (const int ranks : {1, 2, 3, 4}) {
      const std::vector<Ledger> cpu = run(model, megatron(), line(ranks), steps, ops, bf16_over_f32())
                                          .result.ledgers;
      EXPECT_EQ(
          run(bare, megatron(), line(ranks), steps, ops, bf16_over_f32("meta", "solo")).result.ledgers,
          cpu);
    }
  }
}

/// Flops and bytes of the ops of this name at a site, over all ranks.
Cost work_at(const std::vector<Ledger>& ledgers, const std::string& what, const std::string& site) {
  Cost sum;
  for (const Ledger& ledger : ledgers) {
    for (const LedgerRecord& record : ledger) {
      const bool here = record.site == site || record.site == site + ".partial";
      if (record.kind != LedgerRecord::Kind::op || record.what != what || !here) continue;
      sum.flops += record.flops;
      sum.bytes += record.moved_bytes;
    }
  }
  return sum;
}

TEST(Ledger, SplitsTheWorkOfCutLinearsWithoutLoss) {
  const Registry ops = builtin_ops();
  const Model model = make_model({});
  const Step step = prefill({5, 1, 17}, 257);
  const std::vector<Ledger> one = run(model, megatron(), line(1), {step}, ops, bf16_over_f32())
                                      .result.ledgers;
  const std::vector<Ledger> four = run(model, megatron(), line(4), {step}, ops, bf16_over_f32())
                                       .result.ledgers;
  for (const char* site : {"layers.0.self_attn.q_proj", "layers.0.self_attn.o_proj",
                           "layers.1.mlp.gate_proj", "layers.1.mlp.down_proj", "lm_head"}) {
    const Module& module = model.module(site);
    const Cost alone = work_at(one, "linear", site);
    EXPECT_EQ(alone.flops, 2 * 23 * module.in * module.out) << site;
    EXPECT_EQ(alone.bytes, 2 * (23 * module.in + 23 * module.out + module.in * module.out)) << site;
    EXPECT_EQ(work_at(four, "linear", site).flops, alone.flops) << site;
  }
  // Kv heads 0 to 2 on 4 ranks are held 1 + 1 + 2 + 1 times.
  EXPECT_EQ(3 * work_at(four, "linear", "layers.0.self_attn.k_proj").flops,
            5 * work_at(one, "linear", "layers.0.self_attn.k_proj").flops);
  // Pairs of query and key: 5 and 17 tokens see 1 + 2 + ... of them, in 9 heads of 8, two products each.
  EXPECT_EQ(work_at(one, "attention", "layers.0.self_attn.attn").flops, 4 * (15 + 1 + 153) * 9 * 8);
  EXPECT_EQ(work_at(four, "attention", "layers.0.self_attn.attn").flops, 4 * (15 + 1 + 153) * 9 * 8);
}

TEST(Ledger, CountsOnlyTheKeysThatAWindowShows) {
  const Registry ops = builtin_ops();
  const Model model = make_model({"mistral", 4, 2, 4, 20, 27, 50, 1, false, false, 3});
  const std::vector<Ledger> ledgers =
      run(model, megatron(), line(1), {prefill({6}, 50)}, ops, bf16_over_f32()).result.ledgers;
  EXPECT_EQ(work_at(ledgers, "attention", "layers.0.self_attn.attn").flops,
            4 * (1 + 2 + 3 + 3 + 3 + 3) * 4 * 4);
}

}  // namespace
}  // namespace shardcheck
