// SPDX-License-Identifier: Apache-2.0
// Products and the collectives after them: whole, cut by rows, cut by columns with partials on the wire.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

constexpr std::int64_t kTokens = 24;

// sum_k x(m, k) w(n, k) over `columns`, added in the order k, in T; the bias added last.
template <typename T>
Table product(const Table& x, const Table& w, const Ranges& columns, const Table* bias) {
  Table y(x.rows(), w.rows());
  for (std::int64_t m = 0; m < x.rows(); ++m) {
    for (std::int64_t n = 0; n < w.rows(); ++n) {
      T sum = 0;
      for (const Range& range : columns) {
        for (std::int64_t k = range.begin; k < range.end; ++k)
          sum += static_cast<T>(x(m, k)) * static_cast<T>(w(n, k));
      }
      if (bias != nullptr) sum += static_cast<T>((*bias)(n, 0));
      y(m, n) = static_cast<double>(sum);
    }
  }
  return y;
}

Table product(DType storage, const Table& x, const Table& w, const Ranges& columns,
              const Table* bias = nullptr) {
  return storage == DType::f64 ? product<double>(x, w, columns, bias)
                               : product<float>(x, w, columns, bias);
}

/// down_proj cut by columns on `ranks` ranks: act S -> partial P -> reduced R.
struct RowParallel {
  RowParallel(const Model& of, int ranks, DType storage, DType wire, unsigned seed,
              ReduceSpec spec = {})
      : model(of), run(of, {{"tp", ranks}}, storage, wire) {
    run.prefill(kTokens);
    run.run.reduction = spec;
    const Partition part = Partition::balanced(160, ranks);
    ModulePlacement& placement = run.program.plan.weights["layers.0.mlp.down_proj"];
    placement.cuts = {{0, false}};
    for (int r = 0; r < ranks; ++r) {
      placement.cols.push_back(part.of(r));
      placement.rows.push_back({{0, 96}});
    }
    act = run.value("act", run.cut(part));
    partial = run.value("down.partial", run.partial(96), ValueDType::wire);
    out = run.value("down", run.whole(96));
    run.source(act);
    run.op("linear", "layers.0.mlp.down_proj", {act}, {partial});
    run.collective(CollectiveStep::Kind::all_reduce, partial, out);
    x = random_table(storage, kTokens, 160, seed);
    w = stored(model, storage, "layers.0.mlp.down_proj.weight");
    run.spread(act, x);
    for (int r = 0; r < ranks; ++r) run.set(partial, r, product(storage, x, w, part.of(r)));
    reduce();
  }

  // Rank 0 first, a rounding to the wire dtype after every hop or after the last; then storage.
  void reduce() {
    Table sum(kTokens, 96);
    const bool every_hop = rounds_every_hop(run.run.reduction);
    std::vector<HostTensor>& parts = run.tensors(partial);
    for (std::int64_t i = 0; i < kTokens * 96; ++i) {
      double total = parts[0].at(i);
      for (std::size_t r = 1; r < parts.size(); ++r) {
        total += parts[r].at(i);
        if (run.run.wire != DType::f64) total = static_cast<double>(static_cast<float>(total));
        if (every_hop || r + 1 == parts.size()) total = rounded(run.run.wire, total);
      }
      sum.data()[i] = total;
    }
    run.spread(out, sum);
  }
  std::vector<TapScore> scores() const { return run.judge(model); }

  const Model& model;
  HandRun run;
  Table x, w;
  int act = 0, partial = 0, out = 0;
};

void expect_clean(const std::vector<TapScore>& scores) {
  for (const TapScore& score : scores) {
    EXPECT_TRUE(score.passed()) << score.tap << " rank " << score.rank << ": A " << score.a << " B "
                                << score.b << " C " << score.c << " " << score.problem;
    EXPECT_LE(score.a, score.limits.a / 1.5) << score.tap;
    EXPECT_LE(score.b, 0.6) << score.tap;
    EXPECT_LE(score.c, 1.2) << score.tap;
  }
}

class LocalLinear : public ::testing::TestWithParam<std::tuple<DType, unsigned>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  unsigned seed() const { return std::get<1>(GetParam()); }
  const Model model = small_llama();
};

INSTANTIATE_TEST_SUITE_P(DTypes, LocalLinear,
                         ::testing::Combine(::testing::ValuesIn(kDTypes), ::testing::Values(1u, 2u, 3u)),
                         [](const auto& at) {
                           return std::string(name(std::get<0>(at.param))) + "_" +
                                  std::to_string(std::get<1>(at.param));
                         });

TEST_P(LocalLinear, WholeWithItsBias) {
  HandRun run(model, 1, dtype());
  run.prefill(kTokens);
  const int x = run.value("x", run.whole(96)), y = run.value("q", run.whole(96));
  run.source(x);
  run.op("linear", "layers.0.self_attn.q_proj", {x}, {y}, {}, /*adds_bias=*/true);
  const Table in = random_table(dtype(), kTokens, 96, seed());
  const Table w = stored(model, dtype(), "layers.0.self_attn.q_proj.weight");
  const Table bias = stored(model, dtype(), "layers.0.self_attn.q_proj.bias");
  run.spread(x, in);
  run.spread(y, product(dtype(), in, w, {{0, 96}}, &bias));
  expect_clean(run.judge(model));
  run.spread(y, product(dtype(), in, w, {{0, 96}}));
  EXPECT_NE(first_failure(run.judge(model)), nullptr) << "without its bias";
  run.spread(y, product(dtype(), in, w, {{0, 95}}, &bias));
  EXPECT_NE(first_failure(run.judge(model)), nullptr) << "a range short by one";
}

TEST_P(LocalLinear, CutByRowsUnevenly) {
  HandRun run(model, 3, dtype());
  run.prefill(kTokens);
  const Partition part(160, {{{0, 20}, {100, 160}}, {{20, 100}}, {}});
  const int x = run.value("x", run.whole(96)), y = run.value("up", run.cut(part));
  run.source(x);
  run.op("linear", "layers.0.mlp.up_proj", {x}, {y});
  const Table in = random_table(dtype(), kTokens, 96, seed());
  const Table w = stored(model, dtype(), "layers.0.mlp.up_proj.weight");
  const Table out = product(dtype(), in, w, {{0, 96}});
  run.spread(x, in);
  run.spread(y, out);
  expect_clean(run.judge(model));
  // Local column 25 of rank 0 is feature 105.
  run.corrupt(y, 0, 5, 25, [](double v) { return v * 1.1 + 0.5; });
  const std::vector<TapScore> scores = run.judge(model);
  EXPECT_FALSE(scores[0].passed());
  EXPECT_EQ(scores[0].worst.feature, 105);
  EXPECT_EQ(scores[0].worst.local_feature, 25);
  EXPECT_EQ(scores[0].worst.row, 5);
  EXPECT_TRUE(scores[1].passed());
  EXPECT_TRUE(scores[2].passed());
  EXPECT_EQ(scores[2].compared, 0);
  EXPECT_EQ(scores[2].margin(), std::numeric_limits<double>::infinity());
}

TEST_P(LocalLinear, PartialsAndTheirSumPass) {
  for (const int ranks : {2, 3, 5, 8})
    expect_clean(RowParallel(model, ranks, dtype(), dtype(), seed()).scores());
}

TEST_P(LocalLinear, FaultsOfPartialsAreFoundOnTheirRank) {
  // One rank scaled by 1.02, two channels swapped, one token stale, a NaN, fp8-like rounding.
  const auto spoil = [&](int fault) {
    RowParallel made(model, 3, dtype(), dtype(), seed());
    const HostTensor part = made.run.tensors(made.partial)[1];
    std::vector<double> v = part.to_f64();
    for (std::size_t m = 0; m < kTokens; ++m) {
      if (fault == 1) std::swap(v[m * 96 + 3], v[m * 96 + 70]);
      if (fault == 0)
        std::for_each_n(v.begin() + static_cast<std::ptrdiff_t>(m * 96), 96,
                        [](double& e) { e *= 1.02; });
    }
    if (fault == 2) std::copy_n(v.begin() + 10 * 96, 96, v.begin() + 11 * 96);
    if (fault == 3) v[4 * 96 + 50] = std::numeric_limits<double>::quiet_NaN();
    if (fault == 4) {
      for (double& e : v)
        e = static_cast<double>(
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(static_cast<float>(e)) & 0xfff00000u));
    }
    made.run.tensors(made.partial)[1] = round_to(part.dtype(), part.shape(), v);
    made.reduce();
    return made.scores();
  };
  for (int fault = 0; fault < 5; ++fault) {
    const std::vector<TapScore> scores = spoil(fault);
    const TapScore* first = first_failure(scores);
    ASSERT_NE(first, nullptr) << fault;
    EXPECT_EQ(first->tap, "down.partial") << fault;
    EXPECT_EQ(first->rank, 1) << fault;
    for (const TapScore& score : scores) {
      if (score.tap == "down.partial" && score.rank != 1) {
        EXPECT_TRUE(score.passed()) << fault;
      }
      // The sum itself is right for what was put in; a NaN stays one.
      if (score.tap == "down") {
        EXPECT_EQ(score.passed(), fault != 3) << fault;
      }
    }
  }
}

TEST_P(LocalLinear, ADroppedOrDoubledTermIsTheCollectivesFault) {
  for (const double factor : {0.0, 2.0}) {
    RowParallel made(model, 3, dtype(), dtype(), seed());
    const HostTensor right = made.run.tensors(made.out)[0], term = made.run.tensors(made.partial)[2];
    std::vector<double> v = right.to_f64();
    for (std::int64_t i = 0; i < kTokens * 96; ++i)
      v[static_cast<std::size_t>(i)] += (factor - 1.0) * term.at(i);
    made.run.tensors(made.out).assign(3, round_to(dtype(), right.shape(), v));
    const std::vector<TapScore> scores = made.scores();
    const TapScore* first = first_failure(scores);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->tap, "down");
    EXPECT_EQ(first->rank, 0);
    for (const TapScore& score : scores) EXPECT_EQ(score.passed(), score.tap != "down");
  }
}

// All orders, hop roundings and wire dtypes: the budget follows what the run states.
TEST(LocalCollective, OrdersAndWireDtypes) {
  const Model model = small_llama();
  for (const DType storage : kDTypes) {
    for (const DType wire : {DType::f32, DType::bf16, DType::f16}) {
      for (const ReduceOrder order :
           {ReduceOrder::ring, ReduceOrder::one_shot, ReduceOrder::fixed_tree}) {
        for (const HopRounding hop : {HopRounding::wire, HopRounding::f32}) {
          ReduceSpec spec;
          spec.order = order;
          spec.hop = hop;
          SCOPED_TRACE(std::string(name(storage)) + " " + std::string(name(wire)) + " " +
                       std::string(name(order)));
          expect_clean(RowParallel(model, 4, storage, wire, 9, spec).scores());
        }
      }
    }
  }
}

// A wire dtype below what is stated: partials rounded to bf16 where f32 was promised.
TEST(LocalCollective, AWireCoarserThanStatedIsFound) {
  const Model model = small_llama();
  RowParallel made(model, 2, DType::bf16, DType::f32, 4);
  const HostTensor part = made.run.tensors(made.partial)[1];
  std::vector<double> v = part.to_f64();
  for (double& e : v) e = rounded(DType::bf16, e);
  made.run.tensors(made.partial)[1] = round_to(DType::f32, part.shape(), v);
  made.reduce();
  const std::vector<TapScore> scores = made.scores();
  EXPECT_EQ(first_failure(scores)->rank, 1);
  EXPECT_EQ(first_failure(scores)->tap, "down.partial");
}

TEST(LocalCollective, GathersMoveAndTheLowestOwnerCounts) {
  const Model model = small_llama();
  HandRun run(model, 3, DType::f32);
  run.prefill(kTokens);
  const Partition part(48, {{{0, 32}}, {{16, 32}}, {{32, 48}}});
  const int cut = run.value("cut", run.cut(part, true)), whole = run.value("whole", run.whole(48));
  run.source(cut);
  run.collective(CollectiveStep::Kind::all_gather, cut, whole);
  const Table x = random_table(DType::f32, kTokens, 48, 3);
  run.spread(cut, x);
  run.spread(whole, x);
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  // Rank 1's own copy of features 16 to 32 may differ; what is gathered is rank 0's.
  run.corrupt(cut, 1, 2, 3, [](double v) { return v + 1.0; });
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  run.corrupt(whole, 2, 2, 19, [](double v) { return v + 1.0; });
  const std::vector<TapScore> scores = run.judge(model);
  ASSERT_NE(first_failure(scores), nullptr);
  EXPECT_EQ(first_failure(scores)->rank, 2);
  EXPECT_EQ(first_failure(scores)->worst.feature, 19);
}

TEST(LocalCollective, ReduceScatterSliceAndBroadcast) {
  const Model model = small_llama();
  HandRun run(model, 3, DType::f32);
  run.prefill(kTokens);
  const int partial = run.value("p", run.partial(48), ValueDType::wire),
            scattered = run.value("s", run.balanced(48));
  const int whole = run.value("w", run.whole(48)), sliced = run.value("c", run.balanced(48)),
            sent = run.value("b", run.whole(48));
  run.source(partial);
  run.source(whole);
  run.collective(CollectiveStep::Kind::reduce_scatter, partial, scattered);
  run.collective(CollectiveStep::Kind::slice, whole, sliced);
  run.collective(CollectiveStep::Kind::broadcast, whole, sent);
  for (Phase phase : {Phase::prefill, Phase::decode})
    run.program.instructions[phase].back().collective.root = 2;
  Table sum(kTokens, 48);
  for (int rank = 0; rank < 3; ++rank) {
    const Table term = random_table(DType::f32, kTokens, 48, static_cast<unsigned>(rank) + 20);
    run.set(partial, rank, term);
    for (std::int64_t i = 0; i < kTokens * 48; ++i)
      sum.data()[i] = rounded(DType::f32, sum.data()[i] + term.data()[i]);
    run.set(whole, rank, random_table(DType::f32, kTokens, 48, static_cast<unsigned>(rank) + 30));
  }
  run.spread(scattered, sum);
  for (int rank = 0; rank < 3; ++rank) {
    const Table own = random_table(DType::f32, kTokens, 48, static_cast<unsigned>(rank) + 30);
    run.set(sliced, rank, HandRun::slice(own, {{0, kTokens}}, {{rank * 16, rank * 16 + 16}}));
    run.set(sent, rank, random_table(DType::f32, kTokens, 48, 32));
  }
  EXPECT_EQ(first_failure(run.judge(model)), nullptr);
  run.set(sent, 1, random_table(DType::f32, kTokens, 48, 31));
  run.corrupt(scattered, 2, 4, 7, [](double v) { return v + 1.0; });
  run.corrupt(sliced, 0, 4, 7, [](double v) { return v * (1.0 + 0x1p-22); });
  const std::vector<TapScore> scores = run.judge(model);
  for (const TapScore& score : scores) {
    const bool spoilt = (score.tap == "b" && score.rank == 1) ||
                        (score.tap == "s" && score.rank == 2) ||
                        (score.tap == "c" && score.rank == 0);
    EXPECT_EQ(score.passed(), !spoilt) << score.tap << " " << score.rank;
  }
}

}  // namespace
}  // namespace shardcheck::testing
