// SPDX-License-Identifier: Apache-2.0
// What the judge makes of a run as a whole: which rank, which tap, over which steps; and of runs that aren't whole.
#include "harness/judge.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/error.hpp"
#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

Table sum(const Table& a, const Table& b) {
  Table y(a.rows(), a.cols());
  for (std::int64_t i = 0; i < a.rows() * a.cols(); ++i)
    y.data()[i] = static_cast<double>(static_cast<float>(a.data()[i]) +
                                      static_cast<float>(b.data()[i]));
  return y;
}

// x W^T in f32, one column at a time.
Table product(const Table& x, const Table& w) {
  Table y(x.rows(), w.rows());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t n = 0; n < w.rows(); ++n) {
      float dot = 0.0F;
      for (std::int64_t k = 0; k < x.cols(); ++k)
        dot += static_cast<float>(x(m, k)) * static_cast<float>(w(n, k));
      y(m, n) = static_cast<double>(dot);
    }
  }
  return y;
}

/// a + b over a prefill of 20 tokens and three decode steps of one token, on 2 ranks.
struct Decode {
  Decode() : model(small_llama()), run(model, 2, DType::bf16) {
    run.prefill(20);
    for (std::int64_t t = 0; t < 3; ++t) run.step(Phase::decode, {{0, 20 + t, 1}}, {t});
    a = run.value("a", run.whole(96));
    b = run.value("b", run.whole(96));
    y = run.value("y", run.whole(96));
    run.source(a);
    run.source(b);
    run.op("add", "layers.0", {a, b}, {y});
    for (std::size_t s = 0; s < 4; ++s) {
      const std::int64_t rows = s == 0 ? 20 : 1;
      const auto seed = static_cast<unsigned>(s);
      const Table first = random_table(DType::bf16, rows, 96, seed),
                  second = random_table(DType::bf16, rows, 96, 50 + seed);
      run.spread(a, first, s);
      run.spread(b, second, s);
      run.spread(y, sum(first, second), s);
    }
  }
  std::vector<TapScore> scores(JudgeOptions options = {}) const {
    return run.judge(model, options);
  }

  Model model;
  HandRun run;
  int a = 0, b = 0, y = 0;
};

TEST(Judge, AllStepsAreJudgedTogether) {
  Decode made;
  const std::vector<TapScore> clean = made.scores();
  ASSERT_EQ(clean.size(), 2u);
  EXPECT_EQ(first_failure(clean), nullptr);
  EXPECT_EQ(clean[0].compared, 23 * 96);
  EXPECT_GT(clean[0].c, 0.0);  // columns of 23 tokens
  made.run.corrupt(
      made.y, 1, 0, 33, [](double v) { return v * 1.05 + 0.1; }, 2);
  const std::vector<TapScore> scores = made.scores();
  EXPECT_TRUE(scores[0].passed());
  EXPECT_FALSE(scores[1].passed());
  EXPECT_EQ(scores[1].rank, 1);
  EXPECT_EQ(scores[1].worst.phase, Phase::decode);
  EXPECT_EQ(scores[1].worst.step, 1);
  EXPECT_EQ(scores[1].worst.row, 0);
  EXPECT_EQ(scores[1].worst.feature, 33);
  EXPECT_LT(scores[1].margin(), 1.0);
}

// A plan may ask for other collectives in decode: what the phases don't share is judged apart, in its place.
TEST(Judge, PhasesThatDifferAreJudgedApart) {
  Decode made;
  const int z = made.run.value("z", made.run.whole(96));
  made.run.op("add", "layers.0", {made.y, made.b}, {z});
  made.run.program.instructions[Phase::prefill].pop_back();
  for (std::size_t s = 1; s < 4; ++s) {
    const auto table = [&](int value) {
      const HostTensor& part = made.run.tensors(value, s)[0];
      return Table(part.rows(), part.cols(), part.to_f64());
    };
    made.run.spread(z, sum(table(made.y), table(made.b)), s);
  }
  const std::vector<TapScore> scores = made.scores();
  ASSERT_EQ(scores.size(), 4u);
  EXPECT_EQ(first_failure(scores), nullptr);
  EXPECT_EQ(scores[0].compared, 23 * 96);
  EXPECT_EQ(scores[2].tap, "z");
  EXPECT_EQ(scores[2].compared, 3 * 96);
  EXPECT_LT(scores[0].order, scores[2].order);
}

// Replicas that differ are each judged from their own inputs.
TEST(Judge, EachRankIsJudgedFromItsOwnInputs) {
  Decode made;
  const Table other = random_table(DType::bf16, 20, 96, 99);
  const HostTensor& b = made.run.tensors(made.b)[1];
  made.run.set(made.a, 1, other);
  EXPECT_FALSE(made.scores()[1].passed());
  EXPECT_TRUE(made.scores()[0].passed());
  made.run.set(made.y, 1, sum(other, Table(20, 96, b.to_f64())));
  EXPECT_EQ(first_failure(made.scores()), nullptr);
}

TEST(Judge, AMissingOrMisshapenPartIsNamed) {
  Decode made;
  made.run.tensors(made.y, 1)[1] = HostTensor();
  EXPECT_TRUE(made.scores()[0].passed());
  EXPECT_EQ(made.scores()[1].problem, "rank 1 has none in decode step 0");
  EXPECT_FALSE(made.scores()[1].passed());

  Decode shape;
  shape.run.set(shape.y, 0, random_table(DType::bf16, 20, 48, 1));
  EXPECT_EQ(shape.scores()[0].problem, "has shape [20, 48] on rank 0, needs [20, 96]");
  EXPECT_TRUE(shape.scores()[1].passed());

  Decode input;
  input.run.set(input.a, 0, random_table(DType::bf16, 20, 48, 1));
  const std::vector<TapScore> scores = input.scores();  // of a on rank 0, then of y
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[1].problem, "its input a has shape [20, 48] on rank 0, needs [20, 96]");
  EXPECT_EQ(scores[1].margin(), 0.0);
  EXPECT_TRUE(scores[2].passed());

  Decode type;
  HostTensor& y = type.run.tensors(type.y, 3)[1];
  y = round_to(DType::f32, y.shape(), y.to_f64());
  EXPECT_EQ(type.scores()[1].problem, "is f32 on rank 1, needs bf16");
}

// A forced run that ended in its second step: the tap it ended at is the first wrong one.
TEST(Judge, ARunThatEndedIsWrongWhereItEnded) {
  Decode made;
  const int z = made.run.value("z", made.run.whole(96));
  made.run.op("add", "layers.0", {made.y, made.b}, {z});
  for (std::size_t s = 0; s < 4; ++s) {
    const auto table = [&](int value) {
      const HostTensor& part = made.run.tensors(value, s)[0];
      return Table(part.rows(), part.cols(), part.to_f64());
    };
    made.run.spread(z, sum(table(made.y), table(made.b)), s);
  }
  EXPECT_EQ(first_failure(made.scores()), nullptr);
  made.run.tensors(z, 1).assign(2, HostTensor());
  for (std::size_t s = 2; s < 4; ++s) {
    for (const int value : {made.a, made.b, made.y, z})
      made.run.tensors(value, s).assign(2, HostTensor());
  }
  const std::vector<TapScore> scores = made.scores();
  ASSERT_NE(first_failure(scores), nullptr);
  EXPECT_EQ(first_failure(scores)->tap, "z");
  EXPECT_EQ(first_failure(scores)->problem, "rank 0 has none in decode step 0");
  // Without such an end, steps without numbers are missing.
  made.run.spread(z, random_table(DType::bf16, 1, 96, 1), 1);
  EXPECT_EQ(first_failure(made.scores())->tap, "a");
}

TEST(Judge, AnAbsentTapFailsUnlessItMayBeMissing) {
  Decode made;
  for (StepTaps& step : made.run.run.steps) step.index.erase("y");
  ASSERT_EQ(made.scores().size(), 2u);
  EXPECT_EQ(made.scores()[1].problem, "the run has no such tap");
  JudgeOptions options;
  options.taps_may_be_missing = true;
  EXPECT_TRUE(made.scores(options).empty());

  Decode input;
  for (StepTaps& step : input.run.run.steps) step.index.erase("b");
  const std::vector<TapScore> scores = input.scores();
  EXPECT_EQ(scores.back().tap, "y");
  EXPECT_EQ(scores.back().problem, "its input b is missing");
  for (const TapScore& score : input.scores(options)) EXPECT_NE(score.tap, "y");
}

TEST(Judge, AnOpWithoutALocalCheckIsNeverPassed) {
  const Model model = small_llama();
  HandRun run(model, 2, DType::f32);
  run.prefill(8);
  const int x = run.value("x", run.whole(96)), y = run.value("y", run.whole(96));
  run.source(x);
  run.op("negate", "layers.0", {x}, {y});
  Table in = random_table(DType::f32, 8, 96, 1), out = in;
  for (std::int64_t i = 0; i < 8 * 96; ++i) out.data()[i] = -in.data()[i];
  run.spread(x, in);
  run.spread(y, out);
  for (const TapScore& score : run.judge(model)) {
    EXPECT_TRUE(score.unchecked);
    EXPECT_FALSE(score.passed());
    EXPECT_EQ(score.problem, "no local check for op 'negate': add one to LocalOps");
  }
  // One `add` and it is judged like any other.
  LocalOps ops = builtin_local_ops();
  LocalOp negate;
  negate.rounds_once = true;
  negate.recompute = [](const LocalCall& call) {
    LocalValue value{call.inputs[0], {}, {}};
    for (std::int64_t i = 0; i < value.y.rows() * value.y.cols(); ++i)
      value.y.data()[i] = -value.y.data()[i];
    return value;
  };
  ops.add("negate", negate);
  JudgeOptions options;
  options.ops = &ops;
  EXPECT_EQ(first_failure(run.judge(model, options)), nullptr);
  run.corrupt(y, 1, 2, 3, [](double v) { return -v; });
  EXPECT_FALSE(run.judge(model, options)[1].passed());
}

// A partial that a plan let through as if it were whole: judged on every rank against the whole value.
TEST(Judge, APartialTakenForWholeIsWrongOnEveryRank) {
  const Model model = small_llama();
  HandRun run(model, 2, DType::f32);
  run.prefill(20);
  ModulePlacement& placement = run.program.plan.weights["layers.0.self_attn.o_proj"];
  placement.cuts = {{0, false}};
  placement.cols = {{{0, 48}}, {{48, 96}}};
  placement.rows = {{{0, 96}}, {{0, 96}}};
  const int x = run.value("attn", run.balanced(96)),
            y = run.value("layers.0.self_attn.o_proj", run.whole(96));
  run.source(x);
  run.op("linear", "layers.0.self_attn.o_proj", {x}, {y});
  const Table in = random_table(DType::f32, 20, 96, 1),
              w = stored(model, DType::f32, "layers.0.self_attn.o_proj.weight");
  run.spread(x, in);
  run.spread(y, product(in, w));
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    Table own = in;
    for (std::int64_t m = 0; m < 20; ++m) {
      for (std::int64_t k = 0; k < 48; ++k) own(m, (1 - rank) * 48 + k) = 0.0;
    }
    run.set(y, rank, product(own, w));
  }
  for (const TapScore& score : run.judge(model)) EXPECT_FALSE(score.passed());
}

// Two ranks that hold one kv head computed it in matrices of different shape: equal bits can't be asked for, but more
// than the budget apart they may not be.
TEST(Judge, OwnersOfOneHeadAreHeldAgainstEachOther) {
  const Model model = small_llama();
  HandRun run(model, 2, DType::f32);
  run.prefill(20);
  const Partition part(48, {{{0, 32}}, {{16, 48}}});
  const int x = run.value("x", run.whole(96)), v = run.value("v", run.cut(part, true));
  run.source(x);
  run.op("linear", "layers.0.self_attn.v_proj", {x}, {v});
  const Table in = random_table(DType::f32, 20, 96, 1),
              w = stored(model, DType::f32, "layers.0.self_attn.v_proj.weight");
  const Table y = product(in, w);
  run.spread(x, in);
  run.spread(v, y);
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  // 6 budgets up on one rank, 6 down on the other: each is within 8 of the truth, they are 12 apart.
  const auto budget = [&](std::int64_t m, std::int64_t n) {
    double norm = 0.0;
    for (std::int64_t k = 0; k < 96; ++k) norm += std::pow(in(m, k) * w(n, k), 2);
    return 0x1p-24 * (std::abs(y(m, n)) + std::sqrt(96.0 * norm));
  };
  run.corrupt(v, 0, 3, 20, [&](double at) { return at + 6.0 * budget(3, 20); });
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  run.corrupt(v, 1, 3, 4, [&](double at) { return at - 6.0 * budget(3, 20); });
  const std::vector<TapScore> scores = run.judge(model);
  EXPECT_TRUE(scores[0].passed());
  EXPECT_FALSE(scores[1].passed());
  EXPECT_GT(scores[1].a, 11.0);
  EXPECT_EQ(scores[1].worst.feature, 20);
}

TEST(Judge, TwoMeshAxes) {
  const Model model = small_llama();
  HandRun run(model, {{"dp", 2}, {"tp", 2}}, DType::f32, DType::f32);
  run.prefill(20);
  // Tokens cut by dp, features by tp; then the features are gathered within each dp row.
  Layout cut = Layout::sharded(run.program.mesh, 1, Partition::balanced(96, 2));
  cut.placements[0] = Placement::sharded(Dim::tokens);
  cut.row_axes = {0};
  Layout whole = run.whole(96);
  whole.placements[0] = Placement::sharded(Dim::tokens);
  whole.row_axes = {0};
  const int a = run.value("a", cut), b = run.value("b", cut), y = run.value("y", cut),
            g = run.value("g", whole);
  run.source(a);
  run.source(b);
  run.op("add", "layers.0", {a, b}, {y});
  run.collective(CollectiveStep::Kind::all_gather, y, g, {1});
  const Table first = random_table(DType::f32, 20, 96, 1),
              second = random_table(DType::f32, 20, 96, 2);
  run.spread(a, first);
  run.spread(b, second);
  run.spread(y, sum(first, second));
  run.spread(g, sum(first, second));
  const std::vector<TapScore> clean = run.judge(model);
  ASSERT_EQ(clean.size(), 8u);
  EXPECT_EQ(first_failure(clean), nullptr);
  // Rank 3 = (dp 1, tp 1): its row 4 is token 14, its column 5 is feature 53.
  run.corrupt(y, 3, 4, 5, [](double v) { return v + 1.0; });
  const std::vector<TapScore> scores = run.judge(model);
  const TapScore* failed = first_failure(scores);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->tap, "y");
  EXPECT_EQ(failed->rank, 3);
  EXPECT_EQ(failed->worst.row, 14);
  EXPECT_EQ(failed->worst.feature, 53);
  for (const TapScore& score : scores) {
    if (score.tap == "g") {
      EXPECT_EQ(score.passed(), score.rank < 2) << "what was gathered in dp 1 isn't what it shows";
    }
  }
}

// A candidate that doesn't show the partials: the linear is judged together with its reduction.
TEST(Judge, AHiddenPartialIsJudgedThroughItsSum) {
  const Model model = small_gpt2();
  HandRun run(model, {{"tp", 3}}, DType::bf16, DType::bf16);
  run.prefill(20);
  const Partition part = Partition::balanced(160, 3);
  ModulePlacement& placement = run.program.plan.weights["h.0.mlp.c_proj"];
  placement.cuts = {{0, false}};
  for (int r = 0; r < 3; ++r) {
    placement.cols.push_back(part.of(r));
    placement.rows.push_back({{0, 96}});
  }
  const int x = run.value("act", run.cut(part)),
            partial = run.value("h.0.mlp.c_proj.partial", run.partial(96), ValueDType::wire);
  const int reduced = run.value("h.0.mlp.c_proj.reduced", run.whole(96)),
            y = run.value("h.0.mlp.c_proj", run.whole(96));
  run.source(x);
  run.op("linear", "h.0.mlp.c_proj", {x}, {partial});
  run.collective(CollectiveStep::Kind::all_reduce, partial, reduced);
  run.op("bias", "h.0.mlp.c_proj", {reduced}, {y});
  const Table in = random_table(DType::bf16, 20, 160, 1),
              w = stored(model, DType::bf16, "h.0.mlp.c_proj.weight");
  const Table bias = stored(model, DType::bf16, "h.0.mlp.c_proj.bias");
  run.spread(x, in);
  const auto result = [&](int dropped, int biases) {
    Table total(20, 96);
    for (int r = 0; r < 3; ++r) {
      if (r == dropped) continue;
      Table own(20, 160);
      for (std::int64_t m = 0; m < 20; ++m) {
        for (std::int64_t k = part.of(r)[0].begin; k < part.of(r)[0].end; ++k) own(m, k) = in(m, k);
      }
      const Table term = rounded(DType::bf16, product(own, w));
      for (std::int64_t i = 0; i < 20 * 96; ++i)
        total.data()[i] = rounded(DType::bf16, total.data()[i] + term.data()[i]);
    }
    for (int i = 0; i < biases; ++i) {
      for (std::int64_t m = 0; m < 20; ++m) {
        for (std::int64_t d = 0; d < 96; ++d)
          total(m, d) = rounded(DType::bf16, total(m, d) + bias(d, 0));
      }
    }
    return total;
  };
  JudgeOptions options;
  options.taps_may_be_missing = true;
  run.spread(y, result(-1, 1));
  const std::vector<TapScore> scores = run.judge(model, options);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_EQ(scores[0].tap, "h.0.mlp.c_proj");
  EXPECT_EQ(first_failure(scores), nullptr);
  run.spread(y, result(1, 1));
  EXPECT_NE(first_failure(run.judge(model, options)), nullptr) << "one rank's partial dropped";
  run.spread(y, result(-1, 3));
  EXPECT_NE(first_failure(run.judge(model, options)), nullptr) << "the bias added on every rank";
}

// A candidate of unknown plan, held against the unsharded program: ranks that hold parts of a linear's input and its
// whole output must have summed.
TEST(Judge, ACandidateOfUnknownPlan) {
  const Model model = small_llama();
  HandRun run(model, {{"tp", 2}}, DType::bf16, DType::bf16);
  run.prefill(20);
  const int x = run.value("act", run.balanced(160)),
            y = run.value("layers.0.mlp.down_proj", run.whole(96));
  run.source(x);
  run.op("linear", "layers.0.mlp.down_proj", {x}, {y});
  run.program.mesh.axes = {{"tp", 1}};
  run.program.plan.mesh = run.program.mesh;
  const Table in = random_table(DType::bf16, 20, 160, 1),
              w = stored(model, DType::bf16, "layers.0.mlp.down_proj.weight");
  const auto result = [&](double second) {
    Table left = in, right = in;
    for (std::int64_t m = 0; m < 20; ++m) {
      for (std::int64_t k = 0; k < 80; ++k) left(m, 80 + k) = right(m, k) = 0.0;
    }
    const Table a = rounded(DType::bf16, product(left, w)),
                b = rounded(DType::bf16, product(right, w));
    Table total(20, 96);
    for (std::int64_t i = 0; i < 20 * 96; ++i) total.data()[i] = a.data()[i] + second * b.data()[i];
    return total;
  };
  JudgeOptions options;
  options.taps_may_be_missing = true;
  run.spread(x, in);
  run.spread(y, result(1.0));
  EXPECT_EQ(first_failure(run.judge(model, options)), nullptr);
  for (const double factor : {0.0, 1.02}) {
    run.spread(y, result(factor));
    EXPECT_NE(first_failure(run.judge(model, options)), nullptr) << factor;
  }
}

TEST(Judge, ScoresDontDependOnThreads) {
  const Decode made;
  JudgeOptions one, four;
  one.threads = 1;
  four.threads = 4;
  const std::vector<TapScore> a = made.scores(one), b = made.scores(four);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tap, b[i].tap);
    EXPECT_EQ(a[i].a, b[i].a);
    EXPECT_EQ(a[i].b, b[i].b);
    EXPECT_EQ(a[i].c, b[i].c);
  }
}

// A truncating accumulator errs to one side: what its device states widens the budget, what it doesn't is a fault.
TEST(Judge, TheBudgetFollowsTheStatedArithmetic) {
  const Model model = small_llama();
  HandRun run(model, 1, DType::f32);
  run.prefill(20);
  const int x = run.value("x", run.whole(96)), y = run.value("y", run.whole(160));
  run.source(x);
  run.op("linear", "layers.0.mlp.up_proj", {x}, {y});
  const Table in = random_table(DType::f32, 20, 96, 4),
              w = stored(model, DType::f32, "layers.0.mlp.up_proj.weight");
  Table out(20, 160);
  for (std::int64_t m = 0; m < 20; ++m) {
    for (std::int64_t n = 0; n < 160; ++n) {
      double total = 0.0;
      for (std::int64_t k = 0; k < 96; ++k) {
        // 14 bits kept, towards zero.
        total += in(m, k) * w(n, k);
        int exponent = 0;
        const double significand = std::frexp(total, &exponent);
        total = std::ldexp(std::trunc(significand * 0x1p14), exponent - 14);
      }
      out(m, n) = total;
    }
  }
  run.spread(x, in);
  run.spread(y, out);
  EXPECT_NE(first_failure(run.judge(model)), nullptr);
  JudgeOptions options;
  options.arithmetic = [](Primitive, DType) {
    Arithmetic stated;
    stated.truncating = true;
    stated.fraction_bits = 14;
    stated.block_k = 1;
    return stated;
  };
  EXPECT_EQ(first_failure(run.judge(model, options)), nullptr);
}

TEST(Judge, CellsOfOneCallShareTheirStorageDtype) {
  const Decode a;
  Decode b;
  b.run.run.storage = DType::f32;
  const JudgeCell cells[] = {{&a.run.program, &a.run.run}, {&b.run.program, &b.run.run}};
  EXPECT_THROW(judge_local(a.model, cells, {}), InputError);
}

TEST(Judge, EmptyStepsAndRanksPass) {
  const Model model = small_llama();
  HandRun run(model, 4, DType::f32);
  run.step(Phase::prefill, {{0, 0, 0}}, {});
  const int x = run.value("x", run.whole(96)), y = run.value("y", run.balanced(160));
  run.source(x);
  run.op("linear", "layers.0.mlp.up_proj", {x}, {y});
  run.spread(x, Table(0, 96));
  run.spread(y, Table(0, 160));
  for (const TapScore& score : run.judge(model)) {
    EXPECT_TRUE(score.passed()) << score.problem;
    EXPECT_EQ(score.compared, 0);
  }
}

}  // namespace
}  // namespace shardcheck::testing
