// SPDX-License-Identifier: Apache-2.0
#include "harness/mistrust.hpp"

#include <gtest/gtest.h>

#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

/// A value "v" of one layout on `ranks` ranks.
struct OneValue {
  OneValue(int ranks, DType dtype, std::int64_t tokens, const std::string& name = "v")
      : model(small_llama()), run(model, ranks, dtype), name_(name) {
    run.prefill(tokens);
  }
  void place(Layout layout) {
    value = run.value(name_, std::move(layout));
    run.source(value);
  }
  std::vector<Mistrust> found() const { return mistrusted_values(run.run); }

  Model model;
  HandRun run;
  std::string name_;
  int value = 0;
};

TEST(Mistrust, ZerosOfTheWholeValue) {
  for (const bool cut : {false, true}) {
    OneValue made(3, DType::bf16, 10);
    made.place(cut ? made.run.balanced(48) : made.run.whole(48));
    Table x = random_table(DType::bf16, 10, 48, 1);
    for (std::int64_t i = 0; i < 240; ++i) x.data()[i] = i % 2 == 0 ? 0.0 : -0.0;
    made.run.spread(made.value, x);
    EXPECT_TRUE(made.found().empty()) << "exactly half is not more than half";
    x.data()[300] = 0.0;
    made.run.spread(made.value, x);
    ASSERT_EQ(made.found().size(), 1u);
    EXPECT_EQ(made.found()[0].tap, "v");
    EXPECT_EQ(made.found()[0].rank, 0);
    EXPECT_EQ(made.found()[0].sentence, "241 of 480 numbers are exactly 0");
  }
}

// A replica of zeros on one rank alone.
TEST(Mistrust, ZerosOfOneReplica) {
  OneValue made(3, DType::f32, 10);
  made.place(made.run.whole(48));
  made.run.spread(made.value, random_table(DType::f32, 10, 48, 1));
  made.run.set(made.value, 2, Table(10, 48));
  ASSERT_EQ(made.found().size(), 1u);
  EXPECT_EQ(made.found()[0].rank, 2);
}

// Ids of one rank's vocabulary only: the other ranks' partials are zeros, and that is right.
TEST(Mistrust, PartialsAndCachesAreNotLookedAt) {
  OneValue partial(3, DType::f32, 10, "embed_tokens.partial");
  partial.place(partial.run.partial(48));
  for (int rank = 0; rank < 3; ++rank)
    partial.run.set(partial.value, rank,
                    rank == 1 ? random_table(DType::f32, 10, 48, 1) : Table(10, 48));
  EXPECT_TRUE(partial.found().empty());
  OneValue cache(2, DType::f32, 10, "layers.0.self_attn.k_cache");
  cache.place(cache.run.balanced(48));
  cache.run.spread(cache.value, Table(10, 48));
  EXPECT_TRUE(cache.found().empty());
}

TEST(Mistrust, EqualShardsOfDisjointFeatures) {
  OneValue made(3, DType::bf16, 10);
  made.place(made.run.balanced(48));
  made.run.spread(made.value, random_table(DType::bf16, 10, 48, 1));
  EXPECT_TRUE(made.found().empty());
  made.run.tensors(made.value)[2] = made.run.tensors(made.value)[1];
  ASSERT_EQ(made.found().size(), 1u);
  EXPECT_EQ(made.found()[0].rank, 1);
  EXPECT_EQ(made.found()[0].sentence,
            "ranks 1 and 2 hold the same bytes for features [16,32) and [32,48)");
}

// Equal in one step and not in another is a coincidence of that step.
TEST(Mistrust, AllStepsCount) {
  OneValue made(2, DType::bf16, 10);
  made.run.step(Phase::decode, {{0, 10, 1}}, {1});
  made.place(made.run.balanced(48));
  made.run.spread(made.value, random_table(DType::bf16, 10, 48, 1));
  made.run.spread(made.value, random_table(DType::bf16, 1, 48, 2), 1);
  made.run.tensors(made.value, 1)[1] = made.run.tensors(made.value, 1)[0];
  EXPECT_TRUE(made.found().empty());
}

// One kv head for all q heads: every rank holds the same features, which is no coincidence and no fault.
TEST(Mistrust, ASharedKvHeadIsNotAFault) {
  OneValue made(3, DType::f32, 10, "layers.0.self_attn.k_proj");
  made.place(made.run.cut(Partition(16, {{{0, 16}}, {{0, 16}}, {{0, 16}}}), true));
  made.run.spread(made.value, random_table(DType::f32, 10, 16, 1));
  EXPECT_TRUE(made.found().empty());
}

// With one key to see, every q head of a kv head gives that head's v: ranks that share it are equal, others may not be.
TEST(Mistrust, OneTokenOfAttentionOverASharedKvHead) {
  OneValue made(2, DType::f32, 1, "layers.0.self_attn.attn");
  made.place(made.run.balanced(32));
  const Table v = random_table(DType::f32, 1, 16, 1);
  made.run.set(made.value, 0, v);
  made.run.set(made.value, 1, v);
  EXPECT_EQ(made.found().size(), 1u) << "nothing says that the heads are shared";
  const int cache = made.run.value("layers.0.self_attn.v_cache",
                                   made.run.cut(Partition(16, {{{0, 16}}, {{0, 16}}}), true));
  made.run.spread(cache, v);
  EXPECT_TRUE(made.found().empty());
}

TEST(Mistrust, RanksWithoutAPartAreNotEqual) {
  // One decoded token, cut by tokens over 4 ranks: three are empty.
  OneValue tokens(4, DType::f32, 1);
  Layout layout = tokens.run.whole(48);
  layout.placements[0] = Placement::sharded(Dim::tokens);
  layout.row_axes = {0};
  tokens.place(layout);
  tokens.run.spread(tokens.value, random_table(DType::f32, 1, 48, 1));
  EXPECT_TRUE(tokens.found().empty());
  // More ranks than features of one token: one number each, and small numbers of 16 bits meet.
  OneValue features(4, DType::bf16, 1);
  features.place(features.run.cut(Partition(3, {{{0, 1}}, {{1, 2}}, {}, {{2, 3}}})));
  Table x(1, 3);
  x(0, 0) = x(0, 1) = 0.5;
  x(0, 2) = 0.25;
  features.run.spread(features.value, x);
  EXPECT_TRUE(features.found().empty());
}

TEST(Mistrust, ConstantLines) {
  OneValue made(2, DType::f32, 10);
  made.place(made.run.balanced(48));
  Table x = random_table(DType::f32, 10, 48, 1);
  for (std::int64_t m = 0; m < 10; ++m) {
    for (std::int64_t d = 1; d < 48; ++d) x(m, d) = x(m, 0);
  }
  x(9, 47) += 1.0;
  made.run.spread(made.value, x);
  EXPECT_TRUE(made.found().empty()) << "one line is not constant";
  x(9, 47) = x(9, 0);
  made.run.spread(made.value, x);
  // Such shards are equal, too.
  ASSERT_EQ(made.found().size(), 2u);
  EXPECT_EQ(made.found()[1].sentence, "every token's features are one number repeated");
}

TEST(Mistrust, UncheckedOpsAreListedOnce) {
  TapScore good, bad;
  good.tap = "a";
  bad.tap = "b";
  bad.unchecked = true;
  bad.problem = "no local check for op 'x'";
  TapScore again = bad;
  again.rank = 1;
  const std::vector<TapScore> scores{good, bad, again};
  const std::vector<Mistrust> found = unchecked_values(scores);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tap, "b");
  EXPECT_EQ(found[0].sentence, "no local check for op 'x'");
}

}  // namespace
}  // namespace shardcheck::testing
