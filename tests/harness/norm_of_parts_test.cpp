// SPDX-License-Identifier: Apache-2.0
// Norms whose features are cut: what ranks do wrong with the sum of squares, with its divisor and with heads that two
// of them hold; and the recomputation of both ops by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/audit.hpp"
#include "tests/harness/candidate_folder.hpp"
#include "tests/harness/hand_run.hpp"
#include "tests/harness/planted_fault.hpp"
#include "tests/harness/ran_program.hpp"
#include "tests/sharded/feature_stream.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kTwo{DType::f64, DType::bf16};
const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

// ---- whole runs ----

TEST(NormOfParts, TheResidualStreamMayStayCut) {
  for (const int tp : {1, 2, 3, 4}) {
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const VerifyReport report = verified({"tiny-llama", tp, dtype, phase, kFeatureStream});
        EXPECT_TRUE(report.passed()) << tp << " " << describe(report.cells.at(0));
      }
    }
  }
}

TEST(NormOfParts, MegatronOnOlmo2) {
  for (const int tp : {2, 3, 4, 9}) {
    for (const DType dtype : kAll) {
      const VerifyReport report = verified({"tiny-olmo2", tp, dtype, Phase::decode});
      EXPECT_TRUE(report.passed()) << tp << " " << describe(report.cells.at(0));
    }
  }
}

// ---- planted ----

/// Every rank keeps its own sum of squares: the steps at `.stat` do nothing.
MakeFault own_statistic(const std::string& norm) {
  return [norm](const Program&) {
    Fault fault;
    fault.replace = [norm](RankContext& context, const Instruction& instruction,
                           const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != norm + ".stat") return false;
      outputs = {copy_of(context, inputs[0])};
      return true;
    };
    return fault;
  };
}

/// The norm with another sum of squares, or another length of the row.
template <typename Squares>
MakeFault other_norm(const std::string& norm, bool own_length, Squares squares) {
  return [=](const Program&) {
    Fault fault;
    fault.replace = [=](RankContext& context, const Instruction& instruction,
                        const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != norm || instruction.op->name() != "rms_apply") return false;
      const Tensor& x = inputs[0];
      Device& device = context.device();
      const Tensor out = device.allocate(context.stream(), x.dtype, x.rows, x.cols);
      const std::int64_t whole = context.program().value(instruction.inputs[0]).layout.features;
      device.rms_apply(context.stream(), x, context.weight(norm + ".weight"),
                       squares(context, x, inputs[1]), own_length ? x.cols : whole,
                       instruction.attributes.at("eps"), out);
      outputs = {out};
      return true;
    };
    return fault;
  };
}

Tensor given(RankContext&, const Tensor&, const Tensor& sum) { return sum; }
Tensor of_the_part(RankContext& context, const Tensor& x, const Tensor& sum) {
  const Tensor own = context.device().allocate(context.stream(), sum.dtype, sum.rows, 1);
  context.device().square_sum(context.stream(), x, own);
  return own;
}

TEST(PlantedNormFaults, StatisticOfAShard) {
  for (const DType dtype : kTwo) {
    for (const char* norm :
         {"layers.0.self_attn.q_norm", "layers.1.self_attn.k_norm", "layers.2.self_attn.q_norm"}) {
      const std::string name = norm;
      expect_caught({"tiny-olmo2", 3, dtype, Phase::decode}, own_statistic(name),
                    {name + ".stat", all_ranks(3), {}, Gate::g3});
      expect_caught({"tiny-olmo2", 3, dtype, Phase::prefill}, other_norm(name, false, of_the_part),
                    {name, all_ranks(3), {}, Gate::g3});
      // With the divisor of the shard too it is a norm of its own, of about the right size.
      expect_caught({"tiny-olmo2", 3, dtype, Phase::prefill}, other_norm(name, true, of_the_part),
                    {name, all_ranks(3), {}, Gate::g3});
    }
    expect_caught({"tiny-llama", 2, dtype, Phase::prefill, kFeatureStream}, own_statistic("norm"),
                  {"norm.stat", all_ranks(2), {}, Gate::g3});
  }
}

TEST(PlantedNormFaults, LengthOfAShard) {
  for (const DType dtype : kTwo) {
    expect_caught({"tiny-olmo2", 2, dtype, Phase::decode},
                  other_norm("layers.1.self_attn.q_norm", true, given),
                  {"layers.1.self_attn.q_norm", all_ranks(2), {}, Gate::g3});
    expect_caught({"tiny-llama", 4, dtype, Phase::prefill, kFeatureStream},
                  other_norm("layers.2.post_attention_layernorm", true, given),
                  {"layers.2.post_attention_layernorm", all_ranks(4), {}, Gate::g3});
  }
}

// On 4 ranks kv head 1 is on ranks 1 and 2, kv head 2 on ranks 2 and 3.
TEST(PlantedNormFaults, HeadThatTwoRanksHoldIsCountedTwice) {
  for (const DType dtype : kTwo) {
    const std::string site = "layers.1.self_attn.k_norm.stat.partial";
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.replace = [&](RankContext& context, const Instruction& instruction,
                         const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (instruction.site != site) return false;
        const Tensor sum = context.allocate(instruction.outputs[0]);
        context.device().square_sum(context.stream(), inputs[0], sum);
        outputs = {sum};
        return true;
      };
      return made;
    };
    expect_caught({"tiny-olmo2", 4, dtype, Phase::decode}, fault, {site, {2, 3}, {}, Gate::g3});
    // Where no head is on two ranks, that is what there is to count.
    EXPECT_TRUE(verified({"tiny-olmo2", 3, dtype, Phase::decode}, fault).passed());
  }
}

// The wire dtype concerns sums of activations alone.
TEST(PlantedNormFaults, StatisticInTheWireDtype) {
  const std::string site = "layers.0.self_attn.q_norm.stat";
  const MakeFault fault = [&](const Program&) {
    Fault made;
    made.replace = [&](RankContext& context, const Instruction& instruction,
                       const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != site) return false;
      Device& device = context.device();
      const std::int64_t rows = inputs[0].rows;
      const Tensor narrow = device.allocate(context.stream(), DType::bf16, rows, 1);
      const Tensor received = device.allocate(context.stream(), DType::bf16, rows, 1);
      const Tensor wide = context.allocate(instruction.outputs[0]);
      device.cast(context.stream(), inputs[0], narrow);
      context.communicator(instruction.axes)
          .all_reduce(context.stream(), narrow, context.settings().reduction, received,
                      {site, context.step().phase, context.step().index});
      device.cast(context.stream(), received, wide);
      outputs = {wide};
      return true;
    };
    return made;
  };
  expect_caught({"tiny-olmo2", 2, DType::bf16, Phase::prefill}, fault, {site, all_ranks(2)});
}

// ---- as another program's dump ----

TEST(NormOfParts, AreReadBackAsACandidate) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kAll) {
      const CandidateFolder folder(run_in(dtype, tp, Phase::decode, "tiny-olmo2"));
      const CandidateReport report = folder.compare();
      EXPECT_TRUE(report.passed()) << tp << " " << name(dtype) << ": " << describe(report);
      EXPECT_EQ(report.unknown, 0);
    }
  }
  RunOf what = run_in(DType::bf16, 3);
  what.plan = kFeatureStream;
  const CandidateFolder folder(what);
  EXPECT_TRUE(folder.compare().passed()) << describe(folder.compare());
}

TEST(PlantedNormFaults, InACandidate) {
  for (const DType dtype : kTwo) {
    const std::string norm = "layers.1.self_attn.k_norm";
    {
      const CandidateFolder folder(run_in(dtype, 4, Phase::prefill, "tiny-olmo2"));
      folder.change_tensor(2, "prefill/" + norm + ".stat.partial",
                           [](std::vector<double>& values) { values[3] *= 1.25; });
      expect_first(folder.compare(), norm + ".stat.partial", {2});
    }
    {
      const CandidateFolder folder(run_in(dtype, 4, Phase::prefill, "tiny-olmo2"));
      for (int rank = 0; rank < 4; ++rank) {
        folder.change_tensor(rank, "prefill/" + norm + ".stat", [](std::vector<double>& values) {
          for (double& value : values) value /= 3.0;
        });
      }
      expect_first(folder.compare(), norm + ".stat", all_ranks(4));
    }
  }
}

// ---- the closed form ----

TEST(NormOfParts, ClosedFormByHand) {
  struct Stored {
    DType storage, wire;
    std::int64_t bytes;
  };
  for (const Stored& dtype : std::vector<Stored>{
           {DType::f64, DType::f64, 8}, {DType::f32, DType::bf16, 4}, {DType::bf16, DType::bf16, 4}}) {
    RunOf what;
    what.model = "tiny-olmo2";
    what.mesh = Mesh{{{"tp", 4}}};
    what.settings = {dtype.storage, dtype.wire, {}};
    const auto ran = run_of(what);
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<ExpectedCollective> sums;
      for (const ExpectedCollective& e : closed_form(ran->model, ran->program.plan, ran->settings,
                                                     std::span(ran->steps).first(1), rank)) {
        if (e.module.ends_with("_norm")) sums.push_back(e);
      }
      ASSERT_EQ(sums.size(), 2u * 3u);
      EXPECT_EQ(sums[0].module, "layers.0.self_attn.q_norm");
      EXPECT_EQ(sums[5].module, "layers.2.self_attn.k_norm");
      for (const ExpectedCollective& e : sums) {
        EXPECT_EQ(e.what, "all_reduce");
        EXPECT_EQ(e.dtype, accumulate_dtype(dtype.storage));
        EXPECT_EQ(e.payload_bytes, ran->steps[0].tokens() * dtype.bytes);
        EXPECT_EQ(e.own_bytes, e.payload_bytes);
      }
    }
    const AuditResult result = audit(ran->model, ran->program.plan, ran->settings, ran->steps,
                                     ran->result.ledgers, ran->meta);
    EXPECT_TRUE(result.passed) << result.problem;
  }
}

// ---- both ops by hand ----

constexpr std::int64_t kTokens = 24, kFeatures = 96;

class HandNorm : public ::testing::TestWithParam<std::tuple<DType, unsigned>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }

  Table squares(std::int64_t begin, std::int64_t end) const {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table sums(kTokens, 1);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        T sum = 0;
        for (std::int64_t i = begin; i < end; ++i)
          sum += static_cast<T>(x_(m, i)) * static_cast<T>(x_(m, i));
        sums(m, 0) = static_cast<double>(sum);
      }
      return sums;
    });
  }
  Table normed(const Table& sums, std::int64_t features, double eps = 1e-5) const {
    const Table weight = stored(model_, dtype(), "norm.weight");
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, kFeatures);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        const T scale = T(1) / std::sqrt(static_cast<T>(sums(m, 0)) / static_cast<T>(features) +
                                         static_cast<T>(eps));
        for (std::int64_t i = 0; i < kFeatures; ++i)
          y(m, i) = static_cast<double>(static_cast<T>(x_(m, i)) * scale *
                                        static_cast<T>(weight(i, 0)));
      }
      return y;
    });
  }

  /// A norm on two ranks, its features cut at 40: x, the ranks' sums, their sum and y.
  struct Run {
    HandRun run;
    int x, partial, sum, y;
  };
  Run run_with(const Table& first, const Table& second, const Table& sum, const Table& y) const {
    HandRun run(model_, 2, dtype());
    const Partition halves(kFeatures, {{{0, 40}}, {{40, kFeatures}}});
    run.program.plan.weights["norm"].rows = {{{0, 40}}, {{40, kFeatures}}};
    run.program.plan.weights["norm"].cuts = {{0, true}};
    run.prefill(kTokens);
    const int x = run.value("x", run.cut(halves)),
              partial = run.value("norm.stat.partial", run.partial(1), ValueDType::accumulate),
              whole = run.value("norm.stat", run.whole(1), ValueDType::accumulate),
              out = run.value("norm", run.cut(halves));
    run.source(x);
    run.spread(x, x_);
    run.op("rms_statistic", "norm", {x}, {partial});
    run.set(partial, 0, first);
    run.set(partial, 1, second);
    run.collective(CollectiveStep::Kind::all_reduce, partial, whole);
    run.spread(whole, sum);
    run.op("rms_apply", "norm", {x, whole}, {out}, {{"eps", 1e-5}});
    run.spread(out, y);
    return {std::move(run), x, partial, whole, out};
  }
  Table added(const Table& a, const Table& b) const {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table sum(kTokens, 1);
      for (std::int64_t m = 0; m < kTokens; ++m)
        sum(m, 0) = static_cast<double>(static_cast<T>(a(m, 0)) + static_cast<T>(b(m, 0)));
      return sum;
    });
  }

  const Model model_ = small_llama();
  const Table x_ = random_table(dtype(), kTokens, kFeatures, std::get<1>(GetParam()));
  const Table first_ = squares(0, 40), second_ = squares(40, kFeatures), sum_ = added(first_, second_);
};

INSTANTIATE_TEST_SUITE_P(DTypes, HandNorm,
                         ::testing::Combine(::testing::ValuesIn(kDTypes), ::testing::Values(1u, 2u, 3u)),
                         [](const auto& at) {
                           return std::string(name(std::get<0>(at.param))) + "_" +
                                  std::to_string(std::get<1>(at.param));
                         });

TEST_P(HandNorm, CorrectArithmeticPasses) {
  const std::vector<TapScore> scores = run_with(first_, second_, sum_, normed(sum_, kFeatures))
                                           .run.judge(model_);
  ASSERT_EQ(scores.size(), 6u);  // three values on two ranks
  for (const TapScore& score : scores) {
    EXPECT_TRUE(score.passed()) << score.tap << ": A " << score.a << " B " << score.b << " C "
                                << score.c << " " << score.problem;
    EXPECT_LE(score.a, score.limits.a / 2.0) << score.tap;
    EXPECT_GT(score.compared, 0) << score.tap;
  }
}

TEST_P(HandNorm, FaultsAreFoundWhereTheyAre) {
  const Table y = normed(sum_, kFeatures);
  const auto first_wrong = [&](const Run& run) {
    const std::vector<TapScore> scores = run.run.judge(model_);
    const TapScore* failed = first_failure(scores);
    return failed == nullptr ? std::string() : failed->tap + " " + std::to_string(failed->rank);
  };
  // One rank's sum over features of the other; a feature too few.
  EXPECT_EQ(first_wrong(run_with(first_, squares(0, kFeatures), sum_, y)), "norm.stat.partial 1");
  EXPECT_EQ(first_wrong(run_with(squares(0, 39), second_, sum_, y)), "norm.stat.partial 0");
  // The sum of one rank alone, the same twice, and a norm by a shard's statistic, length or another eps.
  EXPECT_EQ(first_wrong(run_with(first_, second_, first_, normed(first_, kFeatures))),
            "norm.stat 0");
  EXPECT_EQ(first_wrong(run_with(first_, second_, added(sum_, sum_), y)), "norm.stat 0");
  EXPECT_EQ(first_wrong(run_with(first_, second_, sum_, normed(first_, kFeatures))), "norm 0");
  EXPECT_EQ(first_wrong(run_with(first_, second_, sum_, normed(sum_, 40))), "norm 0");
  EXPECT_EQ(first_wrong(run_with(first_, second_, sum_, normed(sum_, kFeatures, 0.5))), "norm 0");
  // One element, and NaN.
  Run one = run_with(first_, second_, sum_, y);
  one.run.corrupt(one.y, 1, 7, 13, [](double v) { return v * 1.05 + 0x1p-10; });
  EXPECT_EQ(first_wrong(one), "norm 1");
  Run poisoned = run_with(first_, second_, sum_, y);
  poisoned.run.corrupt(poisoned.partial, 0, 5, 0,
                       [](double) { return std::numeric_limits<double>::quiet_NaN(); });
  EXPECT_EQ(first_wrong(poisoned), "norm.stat.partial 0");
}

// A sum that is stored in 16 bits isn't what the statistic is kept in.
TEST_P(HandNorm, TheStatisticHasTheAccumulateDtype) {
  if (element_size(dtype()) > 2) return;
  Run run = run_with(first_, second_, sum_, normed(sum_, kFeatures));
  std::vector<HostTensor>& parts = run.run.tensors(run.sum);
  for (HostTensor& part : parts) part = round_to(dtype(), part.shape(), part.to_f64());
  const std::vector<TapScore> scores = run.run.judge(model_);
  const TapScore* failed = first_failure(scores);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->tap, "norm.stat");
  EXPECT_NE(failed->problem.find("needs f32"), std::string::npos) << failed->problem;
}

}  // namespace
}  // namespace shardcheck::testing
