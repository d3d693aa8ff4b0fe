// SPDX-License-Identifier: Apache-2.0
// Causes that lie between ranks: which shares a sum is made of, whose part a value is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/harness/diagnosed_fault.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kTwo{DType::f64, DType::bf16};

/// A reduction of each shipped family.
struct Sum {
  std::string model, tap;
};
const std::vector<Sum> kSums{{"tiny-llama", "layers.1.mlp.down_proj"},
                             {"tiny-llama", "layers.0.self_attn.o_proj"}};
// Its bias is added after the sum: the reduced value is a tap of its own.
const Sum kBiased{"tiny-gpt2", "h.1.attn.c_proj.reduced"};

std::string partial_of(const Sum& sum) {
  const std::string suffix = ".reduced";
  const bool reduced = sum.tap.ends_with(suffix);
  return (reduced ? sum.tap.substr(0, sum.tap.size() - suffix.size()) : sum.tap) + ".partial";
}

using Combine = std::function<double(const std::vector<double>& shares)>;

/// The sum becomes `combine` of the ranks' shares, on these ranks.
MakeFault combining(const Sum& sum, int tp, std::vector<int> ranks, Combine combine) {
  const std::string partial = partial_of(sum);
  return changing(
      {sum.tap,
       std::move(ranks),
       {partial},
       [=](std::vector<double>& values, std::size_t, const KeptValues& kept, RankContext& context) {
         std::vector<std::vector<double>> all;
         for (int r = 0; r < tp; ++r) all.push_back(kept.get(partial, context.step(), r));
         for (std::size_t i = 0; i < values.size(); ++i) {
           std::vector<double> shares;
           for (const auto& share : all) shares.push_back(share.at(i));
           values[i] = combine(shares);
         }
       }});
}

double sum_of(const std::vector<double>& shares) {
  double sum = 0.0;
  for (const double s : shares) sum += s;
  return sum;
}

void expect_sum_cause(int tp, const std::vector<int>& ranks, const Combine& combine,
                      const std::string& cause) {
  std::vector<Sum> sums = kSums;
  sums.push_back(kBiased);
  for (const Sum& sum : sums) {
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const CellReport cell = expect_cause({sum.model, tp, dtype, phase},
                                             combining(sum, tp, ranks, combine), sum.tap, cause);
        if (!cell.first) continue;
        EXPECT_EQ(cell.first->ranks, ranks);
        ASSERT_TRUE(cell.first->residual.has_value());
        EXPECT_LE(cell.first->residual->a, cell.first->residual->limits.a);
      }
    }
  }
}

// What each rank made itself was never summed.
TEST(DiagnoseRanks, OneRanksPartial) {
  for (const int tp : {2, 4}) {
    for (int rank = 0; rank < tp; rank += 2)
      expect_sum_cause(
          tp, all_ranks(tp),
          [rank](const std::vector<double>& s) { return s.at(static_cast<std::size_t>(rank)); },
          "one_ranks_partial");
  }
}

TEST(DiagnoseRanks, ShardDroppedOrDoubled) {
  expect_sum_cause(
      4, all_ranks(4), [](const std::vector<double>& s) { return s[0] + s[1] + s[3]; },
      "shard_dropped");
  expect_sum_cause(
      3, {1}, [](const std::vector<double>& s) { return s[1] + s[2]; }, "shard_dropped");
  expect_sum_cause(
      2, {0}, [](const std::vector<double>& s) { return sum_of(s) + s[1]; }, "shard_doubled");
  expect_sum_cause(
      4, {0, 3}, [](const std::vector<double>& s) { return sum_of(s) + s[3]; }, "shard_doubled");
  expect_sum_cause(
      4, {2}, [](const std::vector<double>& s) { return s[0] + s[2] + 2.0 * s[3]; },
      "shard_doubled");
}

TEST(DiagnoseRanks, WrongGroupAndMaximum) {
  expect_sum_cause(
      4, all_ranks(4), [](const std::vector<double>& s) { return s[0] + s[1]; },
      "reduced_over_wrong_group");
  expect_sum_cause(
      4, {2, 3}, [](const std::vector<double>& s) { return s[0] + s[3]; },
      "reduced_over_wrong_group");
  for (const int tp : {2, 4})
    expect_sum_cause(
        tp, all_ranks(tp),
        [](const std::vector<double>& s) { return *std::max_element(s.begin(), s.end()); },
        "reduced_as_maximum");
}

TEST(DiagnoseRanks, Factors) {
  expect_sum_cause(
      2, all_ranks(2), [](const std::vector<double>& s) { return 2.0 * sum_of(s); }, "factor_tp");
  expect_sum_cause(
      3, all_ranks(3), [](const std::vector<double>& s) { return 3.0 * sum_of(s); }, "factor_tp");
  expect_sum_cause(
      4, all_ranks(4), [](const std::vector<double>& s) { return sum_of(s) / 4.0; },
      "factor_inverse_tp");
  expect_sum_cause(
      4, {1}, [](const std::vector<double>& s) { return 2.0 * sum_of(s); }, "factor_two");
  expect_sum_cause(
      4, {1}, [](const std::vector<double>& s) { return sum_of(s) / 2.0; }, "factor_two");
  expect_sum_cause(
      2, {1}, [](const std::vector<double>& s) { return 1.37 * sum_of(s); }, "wrong_factor");
  expect_sum_cause(
      2, {0}, [](const std::vector<double>& s) { return -sum_of(s); }, "wrong_factor");
  expect_sum_cause(
      4, {0}, [](const std::vector<double>& s) { return sum_of(s) + std::log(4.0); }, "log_tp");
}

// One rank's rows are those of the token before.
TEST(DiagnoseRanks, DifferentTokensSummed) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      for (const Sum& sum : kSums) {
        const std::string partial = partial_of(sum);
        const MakeFault fault = changing(
            {sum.tap,
             all_ranks(tp),
             {partial},
             [=](std::vector<double>& values, std::size_t cols, const KeptValues& kept,
                 RankContext& context) {
               const std::vector<double> share = kept.get(partial, context.step(), 1);
               const std::size_t rows = share.size() / cols;
               for (std::size_t m = 0; m < rows; ++m) {
                 for (std::size_t d = 0; d < cols; ++d) {
                   // In f64, so that only the sum is rounded.
                   values[m * cols + d] = share[(m + rows - 1) % rows * cols + d];
                   for (int r = 0; r < tp; ++r)
                     values[m * cols + d] += r == 1
                                                 ? 0.0
                                                 : kept.get(partial, context.step(), r)[m * cols + d];
                 }
               }
             }});
        const CellReport cell = expect_cause({sum.model, tp, dtype}, fault, sum.tap,
                                             "different_tokens_summed");
        ASSERT_TRUE(cell.first.has_value());
        EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("rank 1's share of other tokens"));
      }
    }
  }
}

// A buffer still holds the step before: the whole sum, or one rank's share of it.
TEST(DiagnoseRanks, Stale) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const Sum sum = kSums[0];
      const std::string partial = partial_of(sum);
      const auto stale = [=](bool whole) {
        return changing(
            {sum.tap,
             all_ranks(tp),
             {partial},
             [=](std::vector<double>& values, std::size_t, const KeptValues& kept, RankContext& context) {
               if (context.step().phase != Phase::decode || context.step().index < 1) return;
               for (std::size_t i = 0; i < values.size(); ++i) {
                 values[i] = 0.0;
                 for (int r = 0; r < tp; ++r)
                   values[i] += kept.get(partial, context.step(), r, whole || r == 0 ? 1 : 0)[i];
               }
             }});
      };
      for (const bool whole : {true, false})
        expect_cause({sum.model, tp, dtype, Phase::decode}, stale(whole), sum.tap, "shard_stale");
    }
  }
}

// The bias and the residual, added by every rank before the sum.
TEST(DiagnoseRanks, AddedOnEveryRank) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const MakeFault bias = [](const Program&) {
        Fault fault;
        fault.after = [](RankContext& context, const Instruction& instruction,
                         std::vector<Tensor>& outputs) {
          if (instruction.site != "h.1.mlp.c_proj.partial") return;
          const std::vector<double> b = context.device()
                                            .to_host(context.stream(),
                                                     context.weight("h.1.mlp.c_proj.bias"))
                                            .to_f64();
          outputs[0] = changed(context, outputs[0], [&](std::vector<double>& values, std::size_t cols) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] += b[i % cols];
          });
        };
        return fault;
      };
      expect_cause({"tiny-gpt2", tp, dtype}, bias, "h.1.mlp.c_proj.partial", "bias_times_tp");
      const MakeFault residual = changing(
          {"layers.1.mlp.down_proj.partial",
           all_ranks(tp),
           {"layers.1.self_attn.resid"},
           [](std::vector<double>& values, std::size_t, const KeptValues& kept, RankContext& context) {
             const std::vector<double> x = kept.get("layers.1.self_attn.resid", context.step(),
                                                    context.rank());
             for (std::size_t i = 0; i < values.size(); ++i) values[i] += x[i];
           }});
      expect_cause({"tiny-llama", tp, dtype}, residual, "layers.1.mlp.down_proj.partial",
                   "residual_times_tp");
      // After the sum: the bias counted once more per rank.
      const MakeFault times = [tp](const Program&) {
        Fault fault;
        fault.after = [tp](RankContext& context, const Instruction& instruction,
                           std::vector<Tensor>& outputs) {
          if (instruction.site != "h.0.attn.c_proj") return;
          const std::vector<double> b = context.device()
                                            .to_host(context.stream(),
                                                     context.weight("h.0.attn.c_proj.bias"))
                                            .to_f64();
          outputs[0] = changed(context, outputs[0], [&](std::vector<double>& values, std::size_t cols) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] += (tp - 1.0) * b[i % cols];
          });
        };
        return fault;
      };
      expect_cause({"tiny-gpt2", tp, dtype}, times, "h.0.attn.c_proj", "bias_times_tp");
    }
  }
}

TEST(DiagnoseRanks, LeftOut) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const auto same = [](std::size_t input) {
        return [input](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
          return copy_of(context, inputs[input]);
        };
      };
      expect_cause({"tiny-gpt2", tp, dtype}, replacing("h.1.mlp.c_proj", all_ranks(tp), same(0)),
                   "h.1.mlp.c_proj", "bias_missing");
      expect_cause({"tiny-llama", tp, dtype}, replacing("layers.1", {0}, same(1)), "layers.1",
                   "residual_missing");
      expect_cause({"tiny-llama", tp, dtype}, replacing("layers.1.self_attn.resid", {1}, same(0)),
                   "layers.1.self_attn.resid", "operand_missing");
      expect_cause({"tiny-llama", tp, dtype}, replacing("layers.2.self_attn.k_rot", {1}, same(0)),
                   "layers.2.self_attn.k_rot", "not_applied");
    }
  }
}

/// Blocks of a row exchanged.
void exchange(std::vector<double>& values, std::size_t cols, std::size_t a, std::size_t b,
              std::size_t n) {
  for (std::size_t row = 0; row < values.size(); row += cols)
    std::swap_ranges(values.begin() + static_cast<std::ptrdiff_t>(row + a),
                     values.begin() + static_cast<std::ptrdiff_t>(row + a + n),
                     values.begin() + static_cast<std::ptrdiff_t>(row + b));
}

TEST(DiagnoseRanks, InTheWrongPlace) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      // A gather whose blocks come in the wrong order.
      expect_cause(
          {"tiny-llama", tp, dtype},
          changing({"lm_head",
                    all_ranks(tp),
                    {},
                    [=](std::vector<double>& values, std::size_t cols, const KeptValues&, RankContext&) {
                      const std::size_t n = cols / static_cast<std::size_t>(tp);
                      exchange(values, cols, 0, n, n);
                    }}),
          "lm_head", "rows_of_wrong_rank");
      expect_cause({"tiny-llama", tp, dtype},
                   changing({"layers.1.self_attn.q_rot",
                             {1},
                             {},
                             [](std::vector<double>& values, std::size_t cols, const KeptValues&,
                                RankContext&) { exchange(values, cols, 0, 8, 8); }}),
                   "layers.1.self_attn.q_rot", "permuted_heads");
      // Tokens in the reverse order.
      expect_cause(
          {"tiny-llama", tp, dtype},
          changing({"layers.1.mlp.down_proj",
                    {0},
                    {},
                    [](std::vector<double>& values, std::size_t cols, const KeptValues&, RankContext&) {
                      const std::size_t rows = values.size() / cols;
                      for (std::size_t m = 0; m < rows / 2; ++m) {
                        for (std::size_t d = 0; d < cols; ++d)
                          std::swap(values[m * cols + d], values[(rows - 1 - m) * cols + d]);
                      }
                    }}),
          "layers.1.mlp.down_proj", "permuted_rows");
      // Another rank's part.
      expect_cause({"tiny-llama", tp, dtype},
                   changing({"layers.1.mlp.down_proj.partial",
                             {1},
                             {"layers.1.mlp.down_proj.partial"},
                             [](std::vector<double>& values, std::size_t, const KeptValues&,
                                RankContext&) { std::fill(values.begin(), values.end(), 0.0); }}),
                   "layers.1.mlp.down_proj.partial", "shard_dropped");
    }
  }
  for (const DType dtype : kTwo) {
    for (const int tp : {2, 3}) {
      expect_cause(
          {"tiny-gpt2", tp, dtype},
          changing({"h.1.attn.c_attn",
                    {1},
                    {},
                    [](std::vector<double>& values, std::size_t cols, const KeptValues&,
                       RankContext&) { exchange(values, cols, cols / 3, 2 * (cols / 3), cols / 3); }}),
          "h.1.attn.c_attn", "permuted_sections");
    }
  }
}

// One bit of one replica: every op is within its budget, the ranks differ.
TEST(DiagnoseRanks, ReplicasDiffer) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      const CellReport cell = expect_cause(
          {"tiny-llama", tp, dtype},
          changing({"layers.1.mlp.down_proj",
                    {1},
                    {},
                    [dtype](std::vector<double>& values, std::size_t, const KeptValues&, RankContext&) {
                      double& v = values[7];
                      v = dtype == DType::f64
                              ? std::nextafter(v, 9.0)
                              : static_cast<double>(std::nextafter(static_cast<float>(v), 9.0F));
                    }}),
          "layers.1.mlp.down_proj", "replicas_differ");
      EXPECT_TRUE(cell.gates.at(Gate::g3).passed);
    }
  }
}

// A value changes after it was tapped.
TEST(DiagnoseRanks, Overwritten) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.between = [](RankContext& context, const Instruction& instruction,
                      std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.1.mlp.down_proj" || context.rank() != 1) return;
      context.device().copy(context.stream(), outputs[0].row_range(0, 1), outputs[0].row_range(1, 2));
    };
    return made;
  };
  for (const DType dtype : kTwo)
    expect_cause({"tiny-llama", 2, dtype}, fault, "layers.1.mlp.down_proj", "overwritten");
}

// Nothing that is known gives random numbers.
TEST(DiagnoseRanks, Unexplained) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      for (const std::string tap :
           {"layers.1.mlp.down_proj", "layers.0.self_attn.attn", "layers.1.input_layernorm",
            "layers.2.self_attn.q_proj", "layers.0.mlp.act"}) {
        const CellReport cell = expect_cause(
            {"tiny-llama", tp, dtype},
            changing({tap,
                      {1},
                      {},
                      [](std::vector<double>& values, std::size_t, const KeptValues&, RankContext&) {
                        std::uint64_t state = 88172645463325252u;
                        for (double& v : values) {
                          state ^= state << 13;
                          state ^= state >> 7;
                          state ^= state << 17;
                          v += (static_cast<double>(state >> 11) * 0x1p-53 - 0.5) * 0.7;
                        }
                      }}),
            tap, "unexplained");
        ASSERT_TRUE(cell.first.has_value());
        EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("none of the known causes"));
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
