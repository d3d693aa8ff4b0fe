// SPDX-License-Identifier: Apache-2.0
// Ops whose output element depends on one token: correct arithmetic passes, one wrong element is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/blocks.hpp"
#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

constexpr std::int64_t kTokens = 24;

/// One op between given inputs and an output, on two ranks, everything replicated.
struct OneOp {
  OneOp(const Model& of, DType dtype, const std::string& name, const std::string& module,
        const std::vector<Table>& inputs, const Table& output, Attributes attributes = {})
      : model(of), run(of, 2, dtype) {
    run.prefill(kTokens);
    std::vector<int> values;
    for (const Table& input : inputs) {
      values.push_back(run.value("in" + std::to_string(values.size()), run.whole(input.cols())));
      run.source(values.back());
      run.spread(values.back(), input);
    }
    out = run.value("out", run.whole(output.cols()));
    run.op(name, module, values, {out}, std::move(attributes));
    run.spread(out, output);
  }
  std::vector<TapScore> scores() const { return run.judge(model); }

  const Model& model;
  HandRun run;
  int out = 0;
};

void expect_clean(const std::vector<TapScore>& scores, const std::string& what) {
  ASSERT_EQ(scores.size(), 2u) << what;
  for (const TapScore& score : scores) {
    EXPECT_TRUE(score.passed()) << what << ": A " << score.a << " B " << score.b << " C " << score.c
                                << " " << score.problem;
    EXPECT_LE(score.a, score.limits.a / 2.0 + 0.51) << what;
    EXPECT_LE(score.b, 0.6) << what;
    EXPECT_LE(score.c, 1.0) << what;
  }
}

// 5 % off in one element of rank 1 is found there, and rank 0 stays clean.
void expect_found(OneOp op, const std::string& what) {
  op.run.corrupt(op.out, 1, 7, 13, [](double x) { return x * 1.05 + 0x1p-10; });
  const std::vector<TapScore> scores = op.scores();
  EXPECT_TRUE(scores[0].passed()) << what;
  EXPECT_FALSE(scores[1].passed()) << what;
  EXPECT_EQ(scores[1].worst.row, 7) << what;
  EXPECT_EQ(scores[1].worst.feature, 13) << what;
  EXPECT_EQ(scores[1].worst.rank, 1) << what;
  op.run.corrupt(op.out, 1, 7, 13, [](double) { return std::numeric_limits<double>::quiet_NaN(); });
  const std::vector<TapScore> poisoned = op.scores();
  EXPECT_FALSE(poisoned[1].passed()) << what;
  EXPECT_EQ(poisoned[1].problem, "not finite") << what;
  EXPECT_EQ(poisoned[1].worst.feature, 13) << what;
  EXPECT_EQ(poisoned[1].margin(), 0.0) << what;
}

class LocalElementwise : public ::testing::TestWithParam<std::tuple<DType, unsigned>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  unsigned seed() const { return std::get<1>(GetParam()); }
  Table input(std::int64_t cols, unsigned which = 0) const {
    return random_table(dtype(), kTokens, cols, seed() * 10 + which);
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, LocalElementwise,
                         ::testing::Combine(::testing::ValuesIn(kDTypes), ::testing::Values(1u, 2u, 3u)),
                         [](const auto& at) {
                           return std::string(name(std::get<0>(at.param))) + "_" +
                                  std::to_string(std::get<1>(at.param));
                         });

TEST_P(LocalElementwise, Add) {
  const Model model = small_llama();
  const Table a = input(96), b = input(96, 1);
  const Table y = in_machine(dtype(), [&]<typename T>(T) {
    Table sum(kTokens, 96);
    for (std::int64_t i = 0; i < kTokens * 96; ++i)
      sum.data()[i] = static_cast<double>(static_cast<T>(a.data()[i]) + static_cast<T>(b.data()[i]));
    return sum;
  });
  const OneOp op(model, dtype(), "add", "layers.0", {a, b}, y);
  expect_clean(op.scores(), "add");
  EXPECT_EQ(op.scores()[0].limits.a, 1.01);
  expect_found(OneOp(model, dtype(), "add", "layers.0", {a, b}, y), "add");
  // The residual added twice.
  Table twice = y;
  for (std::int64_t i = 0; i < kTokens * 96; ++i) twice.data()[i] += a.data()[i];
  EXPECT_FALSE(OneOp(model, dtype(), "add", "layers.0", {a, b}, twice).scores()[0].passed());
}

TEST_P(LocalElementwise, Bias) {
  const Model model = small_gpt2();
  const Table x = input(96), bias = stored(model, dtype(), "h.0.mlp.c_proj.bias");
  const auto biased = [&](int times) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 96);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        for (std::int64_t d = 0; d < 96; ++d) {
          T sum = static_cast<T>(x(m, d));
          for (int i = 0; i < times; ++i) sum += static_cast<T>(bias(d, 0));
          y(m, d) = static_cast<double>(sum);
        }
      }
      return y;
    });
  };
  expect_clean(OneOp(model, dtype(), "bias", "h.0.mlp.c_proj", {x}, biased(1)).scores(), "bias");
  expect_found(OneOp(model, dtype(), "bias", "h.0.mlp.c_proj", {x}, biased(1)), "bias");
  for (const int times : {0, 2}) {
    EXPECT_FALSE(OneOp(model, dtype(), "bias", "h.0.mlp.c_proj", {x}, biased(times)).scores()[0].passed())
        << times;
  }
}

TEST_P(LocalElementwise, HeadNorm) {
  const Model model = small_qwen3();
  const std::string module = "layers.0.self_attn.q_norm";
  const Table x = input(96), weight = stored(model, dtype(), module + ".weight");
  // Heads of 16, each with the statistic of `from` features around it.
  const auto normed = [&](double eps, std::int64_t from, std::int64_t weight_shift) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 96);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        for (std::int64_t at = 0; at < 96; at += from) {
          T squares = 0;
          for (std::int64_t d = at; d < at + from; ++d)
            squares += static_cast<T>(x(m, d)) * static_cast<T>(x(m, d));
          const T scale = T(1) / std::sqrt(squares / static_cast<T>(from) + static_cast<T>(eps));
          for (std::int64_t d = at; d < at + from; ++d) {
            const T w = static_cast<T>(weight((d + weight_shift) % 16, 0));
            y(m, d) = static_cast<double>(static_cast<T>(x(m, d)) * scale * w);
          }
        }
      }
      return y;
    });
  };
  const Attributes attributes{{"eps", 1e-5}, {"head_dim", 16.0}};
  const auto op = [&](const Table& y) { return OneOp(model, dtype(), "head_norm", module, {x}, y, attributes); };
  expect_clean(op(normed(1e-5, 16, 0)).scores(), "head_norm");
  expect_found(op(normed(1e-5, 16, 0)), "head_norm");
  EXPECT_FALSE(op(normed(0.5, 16, 0)).scores()[0].passed());
  EXPECT_FALSE(op(normed(1e-5, 32, 0)).scores()[0].passed());  // two heads together
  EXPECT_FALSE(op(normed(1e-5, 96, 0)).scores()[0].passed());  // the whole row
  EXPECT_FALSE(op(normed(1e-5, 16, 1)).scores()[0].passed());  // another feature's weight
}

TEST_P(LocalElementwise, RmsNorm) {
  const Model model = small_llama();
  const Table x = input(96), weight = stored(model, dtype(), "norm.weight");
  const auto normed = [&](double eps) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 96);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        T squares = 0;
        for (std::int64_t d = 0; d < 96; ++d)
          squares += static_cast<T>(x(m, d)) * static_cast<T>(x(m, d));
        const T scale = T(1) / std::sqrt(squares / T(96) + static_cast<T>(eps));
        for (std::int64_t d = 0; d < 96; ++d)
          y(m, d) = static_cast<double>(static_cast<T>(x(m, d)) * scale * static_cast<T>(weight(d, 0)));
      }
      return y;
    });
  };
  const Attributes attributes{{"eps", 1e-5}};
  expect_clean(OneOp(model, dtype(), "rms_norm", "norm", {x}, normed(1e-5), attributes).scores(),
               "rms_norm");
  expect_found(OneOp(model, dtype(), "rms_norm", "norm", {x}, normed(1e-5), attributes),
               "rms_norm");
  EXPECT_FALSE(
      OneOp(model, dtype(), "rms_norm", "norm", {x}, normed(0.5), attributes).scores()[0].passed());
}

TEST_P(LocalElementwise, LayerNorm) {
  const Model model = small_gpt2();
  Table x = input(96);
  // A mean as large as the deviation: x - mean cancels.
  for (std::int64_t i = 0; i < kTokens * 96; ++i) x.data()[i] = rounded(dtype(), x.data()[i] + 5.0);
  const Table gain = stored(model, dtype(), "ln_f.weight"),
              shift = stored(model, dtype(), "ln_f.bias");
  const auto normed = [&](bool shifted) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 96);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        // In eight lanes, as vector units add.
        T lanes[8] = {}, mean = 0, variance = 0;
        for (std::int64_t d = 0; d < 96; ++d) lanes[d % 8] += static_cast<T>(x(m, d));
        for (const T lane : lanes) mean += lane / T(96);
        for (std::int64_t d = 0; d < 96; ++d)
          variance += (static_cast<T>(x(m, d)) - mean) * (static_cast<T>(x(m, d)) - mean);
        const T scale = T(1) / std::sqrt(variance / T(96) + T(1e-5));
        for (std::int64_t d = 0; d < 96; ++d) {
          y(m, d) = static_cast<double>((static_cast<T>(x(m, d)) - mean) * scale *
                                            static_cast<T>(gain(d, 0)) +
                                        (shifted ? static_cast<T>(shift(d, 0)) : T(0)));
        }
      }
      return y;
    });
  };
  const Attributes attributes{{"eps", 1e-5}};
  expect_clean(OneOp(model, dtype(), "layer_norm", "ln_f", {x}, normed(true), attributes).scores(),
               "layer_norm");
  expect_found(OneOp(model, dtype(), "layer_norm", "ln_f", {x}, normed(true), attributes),
               "layer_norm");
  EXPECT_FALSE(
      OneOp(model, dtype(), "layer_norm", "ln_f", {x}, normed(false), attributes).scores()[0].passed());
}

TEST_P(LocalElementwise, Rope) {
  const Model model = small_llama();
  const Table x = input(96);
  const auto rotated = [&](std::int64_t offset) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 96);
      for (std::int64_t m = 0; m < kTokens; ++m) {
        for (std::int64_t head = 0; head < 6; ++head) {
          for (std::int64_t i = 0; i < 8; ++i) {
            const double angle = static_cast<double>(m + offset) *
                                 std::pow(10000.0, -static_cast<double>(i) / 8.0);
            const T c = static_cast<T>(std::cos(angle)), s = static_cast<T>(std::sin(angle));
            const T a = static_cast<T>(x(m, head * 16 + i)),
                    b = static_cast<T>(x(m, head * 16 + i + 8));
            y(m, head * 16 + i) = static_cast<double>(a * c - b * s);
            y(m, head * 16 + i + 8) = static_cast<double>(b * c + a * s);
          }
        }
      }
      return y;
    });
  };
  const Attributes attributes{{"head_dim", 16.0}};
  expect_clean(
      OneOp(model, dtype(), "rope", "layers.0.self_attn", {x}, rotated(0), attributes).scores(),
      "rope");
  expect_found(OneOp(model, dtype(), "rope", "layers.0.self_attn", {x}, rotated(0), attributes),
               "rope");
  EXPECT_FALSE(
      OneOp(model, dtype(), "rope", "layers.0.self_attn", {x}, rotated(1), attributes).scores()[0].passed());
}

TEST_P(LocalElementwise, Gate) {
  const Model model = small_llama();
  const Table g = input(160), up = input(160, 1);
  const auto gated = [&](const Table& first, const Table& second) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 160);
      for (std::int64_t i = 0; i < kTokens * 160; ++i) {
        const T v = static_cast<T>(first.data()[i]);
        y.data()[i] = static_cast<double>(v / (T(1) + std::exp(-v)) * static_cast<T>(second.data()[i]));
      }
      return y;
    });
  };
  expect_clean(OneOp(model, dtype(), "gate", "layers.0.mlp", {g, up}, gated(g, up)).scores(),
               "gate");
  expect_found(OneOp(model, dtype(), "gate", "layers.0.mlp", {g, up}, gated(g, up)), "gate");
  EXPECT_FALSE(
      OneOp(model, dtype(), "gate", "layers.0.mlp", {g, up}, gated(up, g)).scores()[0].passed());
}

TEST_P(LocalElementwise, Unary) {
  const Model model = small_gpt2();
  const Table x = input(160);
  const auto activated = [&](bool gelu) {
    return in_machine(dtype(), [&]<typename T>(T) {
      Table y(kTokens, 160);
      for (std::int64_t i = 0; i < kTokens * 160; ++i) {
        const T v = static_cast<T>(x.data()[i]);
        const T inner = T(0.7978845608028654) * (v + T(0.044715) * v * v * v);
        y.data()[i] = static_cast<double>(gelu ? T(0.5) * v * (T(1) + std::tanh(inner))
                                               : v / (T(1) + std::exp(-v)));
      }
      return y;
    });
  };
  for (const bool gelu : {false, true}) {
    const Attributes attributes{{"kind", gelu ? 1.0 : 0.0}};
    expect_clean(OneOp(model, dtype(), "unary", "h.0.mlp", {x}, activated(gelu), attributes).scores(),
                 "unary");
    expect_found(OneOp(model, dtype(), "unary", "h.0.mlp", {x}, activated(gelu), attributes),
                 "unary");
    EXPECT_FALSE(
        OneOp(model, dtype(), "unary", "h.0.mlp", {x}, activated(!gelu), attributes).scores()[0].passed());
  }
}

TEST_P(LocalElementwise, SplitIsACopy) {
  const Model model = small_gpt2();
  const Table x = input(288);
  const Attributes attributes{{"begin", 96.0}, {"end", 192.0}};
  const Table k = HandRun::slice(x, {{0, kTokens}}, {{96, 192}}),
              q = HandRun::slice(x, {{0, kTokens}}, {{0, 96}});
  const OneOp op(model, dtype(), "split", "h.0.attn.c_attn", {x}, k, attributes);
  for (const TapScore& score : op.scores()) {
    EXPECT_TRUE(score.passed());
    EXPECT_EQ(score.margin(), std::numeric_limits<double>::infinity());
  }
  EXPECT_FALSE(
      OneOp(model, dtype(), "split", "h.0.attn.c_attn", {x}, q, attributes).scores()[0].passed());
}

// One unit in the last place is too much where nothing is computed.
TEST_P(LocalElementwise, EmbeddingIsACopy) {
  const Model model = small_gpt2();
  for (const bool positions : {false, true}) {
    const std::string module = positions ? "wpe" : "wte";
    const Table table = stored(model, dtype(), module + ".weight");
    Table rows(kTokens, 96);
    for (std::int64_t m = 0; m < kTokens; ++m) {
      for (std::int64_t d = 0; d < 96; ++d) rows(m, d) = table(positions ? m : m * 7 % 57, d);
    }
    OneOp op(model, dtype(), "embedding", module, {}, rows, {{"positions", positions ? 1.0 : 0.0}});
    EXPECT_EQ(first_failure(op.scores()), nullptr);
    const double ulp = 4.0 * unit_roundoff(dtype());
    op.run.corrupt(op.out, 0, 3, 5, [ulp](double x) { return x * (1.0 + ulp); });
    EXPECT_FALSE(op.scores()[0].passed());
    EXPECT_EQ(op.scores()[0].a, std::numeric_limits<double>::infinity());
    EXPECT_EQ(op.scores()[0].worst.feature, 5);
    EXPECT_TRUE(op.scores()[1].passed());
  }
}

// The error grows with the angle, and 1 - cos cancels nowhere: far positions pass, a wrong base doesn't.
TEST(LocalRope, FarPositions) {
  const Model model = small_llama();
  HandRun run(model, 1, DType::f32);
  run.step(Phase::prefill, {{0, 131000, 20}}, std::vector<std::int64_t>(20, 3));
  const int x = run.value("x", run.whole(96)), y = run.value("y", run.whole(96));
  run.source(x);
  run.op("rope", "layers.0.self_attn", {x}, {y}, {{"head_dim", 16.0}});
  const Table in = random_table(DType::f32, 20, 96, 5);
  run.spread(x, in);
  for (const double base : {10000.0, 10000.1}) {
    Table out(20, 96);
    for (std::int64_t m = 0; m < 20; ++m) {
      for (std::int64_t i = 0; i < 48; ++i) {
        const std::int64_t at = i / 8 * 16 + i % 8;
        // Another correct formula for the frequency than the judge's.
        const double angle = static_cast<double>(131000 + m) *
                             std::exp(-static_cast<double>(i % 8) / 8.0 * std::log(base));
        const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
        const float a = static_cast<float>(in(m, at)), b = static_cast<float>(in(m, at + 8));
        out(m, at) = static_cast<double>(a * c - b * s);
        out(m, at + 8) = static_cast<double>(b * c + a * s);
      }
    }
    run.spread(y, out);
    EXPECT_EQ(first_failure(run.judge(model)) == nullptr, base == 10000.0) << base;
  }
}

}  // namespace
}  // namespace shardcheck::testing
