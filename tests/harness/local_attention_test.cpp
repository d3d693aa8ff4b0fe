// SPDX-License-Identifier: Apache-2.0
// The KV cache and attention over prefill, chunks and decode steps, with and without a window, ranks with own heads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "tests/harness/hand_run.hpp"

namespace shardcheck::testing {
namespace {

constexpr std::int64_t kHeads = 6, kKvHeads = 3, kDim = 16;

/// Two sequences: a chunked prompt and a short one, then two decode steps. 6 q heads on 4 ranks (2 + 2 + 1 + 1), so
/// ranks 2 and 3 both hold kv head 2.
struct AttentionRun {
  AttentionRun(const Model& of, DType dtype, std::int64_t window, unsigned seed)
      : model(of), run(of, 4, dtype), window_(window) {
    run.step(Phase::prefill, {{0, 0, 9}, {1, 0, 4}}, std::vector<std::int64_t>(13, 1));
    run.step(Phase::prefill, {{0, 9, 8}}, std::vector<std::int64_t>(8, 2));
    run.step(Phase::decode, {{0, 17, 1}, {1, 4, 1}}, {3, 4});
    run.step(Phase::decode, {{1, 5, 1}, {0, 18, 1}}, {5, 6});
    const Partition q_part(96, {{{0, 32}}, {{32, 64}}, {{64, 80}}, {{80, 96}}});
    const Partition kv_part(48, {{{0, 16}}, {{16, 32}}, {{32, 48}}, {{32, 48}}});
    q = run.value("q", run.cut(q_part));
    k = run.value("k", run.cut(kv_part, true));
    v = run.value("v", run.cut(kv_part, true));
    k_cache = run.value("a.k_cache", run.cut(kv_part, true));
    v_cache = run.value("a.v_cache", run.cut(kv_part, true));
    out = run.value("a.attn", run.cut(q_part));
    for (const int cache : {k_cache, v_cache}) {
      run.program.values[static_cast<std::size_t>(cache)].rows = ValueRows::cache;
      run.program.values[static_cast<std::size_t>(cache)].window = window;
    }
    for (const int source : {q, k, v}) run.source(source);
    const auto w = static_cast<double>(window);
    run.op("cache", "layers.0.self_attn", {k, v}, {k_cache, v_cache}, {{"window", w}});
    run.op(
        "attention", "layers.0.self_attn", {q, k_cache, v_cache}, {out},
        {{"head_dim", 16.0}, {"scale", 0.25}, {"window", w}, {"num_heads", 6.0}, {"num_kv_heads", 3.0}});

    std::map<std::pair<std::int64_t, std::int64_t>, std::pair<std::vector<double>, std::vector<double>>> seen;
    for (std::size_t s = 0; s < run.run.steps.size(); ++s) {
      const Step& step = run.run.steps[s].step;
      const auto at = static_cast<unsigned>(s) * 3;
      const Table queries = random_table(dtype, step.tokens(), 96, seed + at);
      const Table keys = random_table(dtype, step.tokens(), 48, seed + at + 1);
      const Table values = random_table(dtype, step.tokens(), 48, seed + at + 2);
      run.spread(q, queries, s);
      run.spread(k, keys, s);
      run.spread(v, values, s);
      std::vector<std::vector<double>> k_rows, v_rows;
      Table y(step.tokens(), 96);
      std::int64_t row = 0;
      for (const StepSequence& part : step.sequences) {
        for (std::int64_t i = 0; i < part.count; ++i) {
          const auto copy = [&](const Table& t) {
            return std::vector<double>(t.row(row + i).begin(), t.row(row + i).end());
          };
          seen[{part.sequence, part.first + i}] = {copy(keys), copy(values)};
        }
        const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, part.first - window + 1) : 0;
        for (std::int64_t p = first; p < part.first + part.count; ++p) {
          k_rows.push_back(seen.at({part.sequence, p}).first);
          v_rows.push_back(seen.at({part.sequence, p}).second);
        }
        for (std::int64_t i = 0; i < part.count; ++i, ++row) {
          const std::int64_t position = part.first + i;
          const std::int64_t from = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
          for (std::int64_t h = 0; h < kHeads; ++h) {
            std::vector<std::vector<double>> head_k, head_v;
            for (std::int64_t p = from; p <= position; ++p) {
              const auto cut = [&](const std::vector<double>& x) {
                return std::vector<double>(x.begin() + h / 2 * kDim, x.begin() + (h / 2 + 1) * kDim);
              };
              head_k.push_back(cut(seen.at({part.sequence, p}).first));
              head_v.push_back(cut(seen.at({part.sequence, p}).second));
            }
            const auto here = queries.row(row).subspan(static_cast<std::size_t>(h * kDim), kDim);
            const std::vector<double> result = dtype == DType::f64
                                                   ? attend(double{}, here, head_k, head_v)
                                                   : attend(float{}, here, head_k, head_v);
            std::copy(result.begin(), result.end(), y.row(row).begin() + h * kDim);
          }
        }
      }
      const auto table = [](const std::vector<std::vector<double>>& rows) {
        Table t(static_cast<std::int64_t>(rows.size()), 48);
        for (std::size_t m = 0; m < rows.size(); ++m)
          std::copy(rows[m].begin(), rows[m].end(), t.row(static_cast<std::int64_t>(m)).begin());
        return t;
      };
      run.spread(k_cache, table(k_rows), s);
      run.spread(v_cache, table(v_rows), s);
      run.spread(out, y, s);
    }
  }

  // softmax(q k / 4) v of one query and head.
  template <typename T>
  static std::vector<double> attend(T, std::span<const double> query,
                                    const std::vector<std::vector<double>>& keys,
                                    const std::vector<std::vector<double>>& values) {
    std::vector<T> scores;
    for (const std::vector<double>& key : keys) {
      T dot = 0;
      for (std::size_t d = 0; d < query.size(); ++d)
        dot += static_cast<T>(query[d]) * static_cast<T>(key[d]);
      scores.push_back(dot * T(0.25));
    }
    const T largest = *std::max_element(scores.begin(), scores.end());
    T sum = 0;
    for (T& score : scores) sum += score = std::exp(score - largest);
    std::vector<double> y;
    for (std::size_t d = 0; d < query.size(); ++d) {
      T dot = 0;
      for (std::size_t j = 0; j < values.size(); ++j)
        dot += scores[j] * static_cast<T>(values[j][d]);
      y.push_back(static_cast<double>(dot / sum));
    }
    return y;
  }

  std::vector<TapScore> scores() const { return run.judge(model); }

  const Model& model;
  HandRun run;
  std::int64_t window_;
  int q = 0, k = 0, v = 0, k_cache = 0, v_cache = 0, out = 0;
};

class LocalAttention : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {
 protected:
  AttentionRun make(unsigned seed) const {
    return {model, std::get<0>(GetParam()), std::get<1>(GetParam()), seed};
  }
  const Model model = small_llama();
};

INSTANTIATE_TEST_SUITE_P(DTypesAndWindows, LocalAttention,
                         ::testing::Combine(::testing::ValuesIn(kDTypes),
                                            ::testing::Values(std::int64_t{0}, std::int64_t{5})),
                         [](const auto& at) {
                           return std::string(name(std::get<0>(at.param))) + "_" +
                                  std::to_string(std::get<1>(at.param));
                         });

TEST_P(LocalAttention, CorrectArithmeticPasses) {
  for (const unsigned seed : {100u, 200u, 300u}) {
    const std::vector<TapScore> scores = make(seed).scores();
    ASSERT_EQ(scores.size(), 12u);
    for (const TapScore& score : scores) {
      EXPECT_TRUE(score.passed()) << score.tap << " A " << score.a << " B " << score.b << " C "
                                  << score.c << " " << score.problem;
      EXPECT_LE(score.a, score.limits.a / 2.0);
      EXPECT_LE(score.b, 0.6);
      EXPECT_EQ(score.tap == "a.attn", score.a > 0.0) << "a cache is a copy";
    }
  }
}

TEST_P(LocalAttention, AStaleCacheEntryIsFound) {
  AttentionRun made = make(1);
  // Sequence 0 reads, in the last step, the key of another position in the row before its own.
  const HostTensor part = made.run.tensors(made.k_cache, 3)[1];
  std::vector<double> values = part.to_f64();
  const auto rows = static_cast<std::size_t>(part.rows());
  for (std::size_t d = 0; d < 16; ++d) values[(rows - 2) * 16 + d] = values[(rows - 3) * 16 + d];
  made.run.tensors(made.k_cache, 3)[1] = round_to(part.dtype(), part.shape(), values);
  const std::vector<TapScore> scores = made.scores();
  const TapScore* first = first_failure(scores);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->tap, "a.k_cache");
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(first->worst.phase, Phase::decode);
  EXPECT_EQ(first->worst.step, 1);
  EXPECT_EQ(first->worst.row, part.rows() - 2);
  EXPECT_GE(first->worst.feature, 16);
  EXPECT_LT(first->worst.feature, 32);
}

TEST_P(LocalAttention, ANeighboursKvHeadIsFound) {
  AttentionRun made = make(2);
  AttentionRun other = make(2);
  // q head 4, on rank 2, reads kv head 1: as if its rows were those of the neighbour.
  for (std::size_t s = 0; s < 4; ++s) {
    for (const int cache : {other.k_cache, other.v_cache}) {
      other.run.tensors(cache, s)[2] = other.run.tensors(cache, s)[1];
    }
  }
  const std::vector<TapScore> scores = other.scores();
  for (const TapScore& score : scores) {
    if (score.tap == "a.attn") {
      EXPECT_EQ(score.passed(), score.rank != 2) << score.rank;
    }
  }
  EXPECT_EQ(first_failure(made.scores()), nullptr);
}

TEST_P(LocalAttention, AWrongScaleIsFound) {
  AttentionRun made = make(3);
  for (Instruction& instruction : made.run.program.instructions[Phase::prefill]) {
    if (instruction.attributes.contains("scale")) instruction.attributes["scale"] = 0.2505;
  }
  for (Instruction& instruction : made.run.program.instructions[Phase::decode]) {
    if (instruction.attributes.contains("scale")) instruction.attributes["scale"] = 0.2505;
  }
  const std::vector<TapScore> scores = made.scores();
  const bool coarse = element_size(made.run.run.storage) ==
                      2;  // 0.2 % in a score is below the rounding of 16 bits
  EXPECT_TRUE(coarse || first_failure(scores) != nullptr);
}

TEST(LocalAttentionMask, AFutureKeyIsFound) {
  const Model model = small_llama();
  AttentionRun made(model, DType::f32, 0, 7);
  const AttentionRun windowed(model, DType::f32, 6, 7);
  // What a window of 6 gives is not what full attention gives.
  for (std::size_t s = 0; s < 4; ++s) {
    for (std::size_t r = 0; r < 4; ++r)
      made.run.tensors(made.out, s)[r] = windowed.run.run.steps[s].find("a.attn")->ranks[r];
  }
  const std::vector<TapScore> scores = made.scores();
  const TapScore* first = first_failure(scores);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->tap, "a.attn");
  EXPECT_EQ(first->rank, 0);
}

TEST(LocalCache, APositionThatNobodyComputedIsNamed) {
  const Model model = small_llama();
  AttentionRun made(model, DType::f32, 0, 8);
  made.run.run.steps[3].step.sequences[1].first = 25;
  const Table longer = random_table(DType::f32, 26 + 6, 16, 1);
  for (std::size_t r = 0; r < 4; ++r) {
    for (const int cache : {made.k_cache, made.v_cache})
      made.run.set(cache, static_cast<int>(r), longer, 3);
  }
  const std::vector<TapScore> scores = made.scores();
  const TapScore* first = first_failure(scores);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->tap, "a.k_cache");
  EXPECT_EQ(first->problem, "position 18 of sequence 0 was computed in no step of the run");
}

}  // namespace
}  // namespace shardcheck::testing
