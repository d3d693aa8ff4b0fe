// SPDX-License-Identifier: Apache-2.0
// Causes that lie inside an op, in the weights, or in no op at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/harness/diagnosed_fault.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kTwo{DType::f64, DType::bf16};

using Row = std::vector<double>;
/// A norm computed on the host, row by row, from the op's own input.
MakeFault norm_by(const std::string& site, std::vector<int> ranks,
                  std::function<Row(const Row& x, const Row& weight, double eps)> norm) {
  return replacing(
      site, std::move(ranks),
      [norm](RankContext& context, const Instruction& instruction, const std::vector<Tensor>& inputs) {
        const std::vector<double> x = context.device().to_host(context.stream(), inputs[0]).to_f64();
        const std::vector<double> w = context.device()
                                          .to_host(context.stream(),
                                                   context.weight(instruction.module + ".weight"))
                                          .to_f64();
        const Tensor out = copy_of(context, inputs[0]);
        return changed(context, out, [&](std::vector<double>& values, std::size_t cols) {
          for (std::size_t at = 0; at < values.size(); at += cols) {
            const Row y = norm(Row(x.begin() + static_cast<std::ptrdiff_t>(at),
                                   x.begin() + static_cast<std::ptrdiff_t>(at + cols)),
                               w, instruction.attributes.at("eps"));
            std::copy(y.begin(), y.end(), values.begin() + static_cast<std::ptrdiff_t>(at));
          }
        });
      });
}

double squares(const Row& x, std::size_t begin, std::size_t end) {
  double sum = 0.0;
  for (std::size_t i = begin; i < end; ++i) sum += x[i] * x[i];
  return sum;
}
Row scaled_by(const Row& x, const Row& w, double scale) {
  Row y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * w[i]);
  return y;
}

TEST(DiagnoseOps, Norms) {
  const std::string site = "layers.1.post_attention_layernorm";
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const Setting setting{"tiny-llama", tp, dtype};
      const auto n = static_cast<std::size_t>(tp);
      expect_cause(
          setting,
          norm_by(site, all_ranks(tp),
                  [n](const Row& x, const Row& w, double eps) {
                    const std::size_t part = x.size() / n;
                    return scaled_by(
                        x, w, 1.0 / std::sqrt(squares(x, 0, part) / static_cast<double>(part) + eps));
                  }),
          site, "statistic_of_shard");
      expect_cause(setting,
                   norm_by(site, {1},
                           [n](const Row& x, const Row& w, double eps) {
                             return scaled_by(
                                 x, w,
                                 1.0 / std::sqrt(squares(x, 0, x.size()) * static_cast<double>(n) /
                                                     static_cast<double>(x.size()) +
                                                 eps));
                           }),
                   site, "wrong_divisor");
      expect_cause(
          setting,
          norm_by(site, {0},
                  [](const Row& x, const Row& w, double eps) {
                    Row y = scaled_by(
                        x, w,
                        1.0 / std::sqrt(squares(x, 0, x.size()) / static_cast<double>(x.size()) + eps));
                    for (std::size_t i = 0; i < y.size(); ++i) y[i] += y[i] / w[i];
                    return y;
                  }),
          site, "wrong_function");
      expect_cause(
          setting,
          norm_by(site, {0},
                  [](const Row& x, const Row&, double eps) {
                    return scaled_by(
                        x, Row(x.size(), 1.0),
                        1.0 / std::sqrt(squares(x, 0, x.size()) / static_cast<double>(x.size()) + eps));
                  }),
          site, "operand_missing");
    }
    // Below bf16's rounding.
    expect_cause(
        {"tiny-llama", tp, DType::f64},
        norm_by(site, all_ranks(tp),
                [](const Row& x, const Row& w, double) {
                  return scaled_by(
                      x, w,
                      1.0 / std::sqrt(squares(x, 0, x.size()) / static_cast<double>(x.size()) + 1e-6));
                }),
        site, "wrong_divisor");
  }
}

/// rope with another position and pairing.
MakeFault rope_by(const std::string& site, int rank,
                  std::function<std::int64_t(std::int64_t position, std::int64_t row)> where,
                  RopeConvention convention = RopeConvention::half_split) {
  return replacing(
      site, {rank},
      [=](RankContext& context, const Instruction& instruction, const std::vector<Tensor>& inputs) {
        const Config& config = context.program().config;
        const DType dtype = accumulate_dtype(context.settings().storage);
        std::vector<double> cosines, sines;
        for (std::size_t m = 0; m < context.positions().size(); ++m) {
          for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
            const double angle = static_cast<double>(
                                     where(context.positions()[m], static_cast<std::int64_t>(m))) /
                                 std::pow(config.rope.theta, 2.0 * static_cast<double>(i) /
                                                                 static_cast<double>(config.head_dim));
            cosines.push_back(std::cos(angle));
            sines.push_back(std::sin(angle));
          }
        }
        Device& device = context.device();
        const std::int64_t rows = inputs[0].rows, cols = config.head_dim / 2;
        const Tensor cos = device.allocate(context.stream(), dtype, rows, cols),
                     sin = device.allocate(context.stream(), dtype, rows, cols);
        device.upload(context.stream(), round_to(dtype, {rows, cols}, cosines), cos);
        device.upload(context.stream(), round_to(dtype, {rows, cols}, sines), sin);
        const Tensor out = context.allocate(instruction.outputs[0]);
        device.rope(context.stream(), inputs[0], cos, sin, config.head_dim, convention, out);
        return out;
      });
}

TEST(DiagnoseOps, Positions) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const std::string site = "layers.0.self_attn.k_rot";
      expect_cause({"tiny-llama", tp, dtype},
                   rope_by(site, 1, [](std::int64_t p, std::int64_t) { return p + 1; }), site,
                   "wrong_positions");
      const CellReport cell = expect_cause(
          {"tiny-llama", tp, dtype, Phase::decode},
          rope_by(site, 0, [](std::int64_t, std::int64_t row) { return row; }), site,
          "wrong_positions");
      ASSERT_TRUE(cell.first.has_value());
      EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("from the step's first row"));
      expect_cause({"tiny-llama", tp, dtype},
                   rope_by(site, 1, [](std::int64_t p, std::int64_t) { return p / 2; }), site,
                   "wrong_positions");
      expect_cause(
          {"tiny-llama", tp, dtype},
          rope_by(
              site, 1, [](std::int64_t p, std::int64_t) { return p; }, RopeConvention::interleaved),
          site, "wrong_convention");
      expect_cause({"tiny-llama", tp, dtype},
                   rope_by(site, 1, [](std::int64_t p, std::int64_t) { return -p; }), site,
                   "wrong_convention");
    }
  }
}

struct Attention {
  std::int64_t window = 0, ahead = 0;
  double scale = 1.0;  // times the model's
  std::int64_t kv_shift = 0;
};

/// One sequence's attention done otherwise.
MakeFault attention_by(const std::string& site, int rank, Attention how) {
  return replacing(
      site, {rank},
      [=](RankContext& context, const Instruction& instruction, const std::vector<Tensor>& inputs) {
        Device& device = context.device();
        const auto d = static_cast<std::int64_t>(instruction.attributes.at("head_dim"));
        const StepSequence sequence = context.step().sequences.at(0);
        const std::int64_t heads = inputs[0].cols / d, kv_heads = inputs[1].cols / d;
        std::vector<std::int32_t> map;
        for (std::int64_t h = 0; h < heads; ++h)
          map.push_back(static_cast<std::int32_t>((h * kv_heads / heads + how.kv_shift) % kv_heads));
        const DType dtype = accumulate_dtype(context.settings().storage);
        const AttentionState state{device.allocate(context.stream(), dtype, sequence.count, heads),
                                   device.allocate(context.stream(), dtype, sequence.count, heads),
                                   device.allocate(context.stream(), dtype, sequence.count, heads * d)};
        const std::int64_t end = sequence.first + sequence.count;
        const AttentionShape shape{d, instruction.attributes.at("scale") * how.scale,
                                   sequence.first + how.ahead, end - inputs[1].rows, how.window};
        const Tensor out = context.allocate(instruction.outputs[0]);
        device.attention_partial(context.stream(), inputs[0], inputs[1], inputs[2], map, shape, state);
        device.attention_finish(context.stream(), state, d, out);
        return out;
      });
}

TEST(DiagnoseOps, Attention) {
  const std::string site = "layers.1.self_attn.attn";
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      expect_cause({"tiny-llama", tp, dtype}, attention_by(site, 1, {0, 1}), site, "wrong_mask");
      expect_cause({"tiny-llama", tp, dtype}, attention_by(site, 0, {0, 100}), site, "wrong_mask");
      expect_cause({"tiny-llama", tp, dtype}, attention_by(site, 0, {5}), site, "wrong_mask");
      expect_cause({"tiny-llama", tp, dtype}, attention_by(site, 1, {0, 0, 2.0}), site,
                   "wrong_scale");
      expect_cause({"tiny-llama", tp, dtype}, attention_by(site, 1, {0, 0, 1.6}), site,
                   "wrong_scale");
    }
  }
  // Two kv heads on a rank: each q head reads the other.
  for (const DType dtype : kTwo)
    expect_cause({"tiny-llama", 2, dtype}, attention_by(site, 1, {0, 0, 1.0, 1}), site,
                 "kv_head_of_neighbour");
}

TEST(DiagnoseOps, KeysForValues) {
  const std::string site = "layers.1.self_attn.attn";
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      expect_cause({"tiny-llama", tp, dtype},
                   replacing(site, {1},
                             [](RankContext& context, const Instruction& instruction,
                                const std::vector<Tensor>& inputs) {
                               return instruction.op
                                   ->run(instruction, context, {inputs[0], inputs[2], inputs[1]})
                                   .at(0);
                             }),
                   site, "operands_exchanged");
    }
  }
}

// A vocabulary-parallel table that gives its first entry where it should give nothing.
TEST(DiagnoseOps, RowsNotMasked) {
  for (const auto& [model, table] : std::vector<std::pair<std::string, std::string>>{
           {"tiny-llama", "embed_tokens"}, {"tiny-gpt2", "wte"}}) {
    for (const int tp : {2, 4}) {
      for (const DType dtype : kTwo) {
        const auto fill = [table = table](std::vector<double>& values, std::size_t cols,
                                          const KeptValues&, RankContext& context) {
          const std::vector<double> entries =
              context.device().to_host(context.stream(), context.weight(table + ".weight")).to_f64();
          for (std::size_t row = 0; row < values.size(); row += cols) {
            const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row);
            const auto end = begin + static_cast<std::ptrdiff_t>(cols);
            if (std::all_of(begin, end, [](double v) { return v == 0.0; }))
              std::copy_n(entries.begin(), cols, begin);
          }
        };
        expect_cause({model, tp, dtype}, changing({table + ".partial", {1}, {}, fill}),
                     table + ".partial", "rows_not_masked");
      }
    }
  }
}

TEST(DiagnoseOps, Functions) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const auto gate = [](std::function<double(double, double)> f) {
        return [f](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
          const std::vector<double> up = context.device().to_host(context.stream(), inputs[1]).to_f64();
          return changed(context, inputs[0], [&](std::vector<double>& values, std::size_t) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], up[i]);
          });
        };
      };
      const std::string site = "layers.1.mlp.act";
      const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
      expect_cause({"tiny-llama", tp, dtype},
                   replacing(site, {1}, gate([=](double g, double u) { return silu(u) * g; })),
                   site, "permuted_sections");
      expect_cause({"tiny-llama", tp, dtype},
                   replacing(site, {0}, gate([=](double g, double) { return silu(g); })), site,
                   "operand_missing");
      expect_cause({"tiny-llama", tp, dtype},
                   replacing(site, {1}, gate([=](double g, double u) { return std::max(g, 0.0) * u; })),
                   site, "wrong_function");
      expect_cause(
          {"tiny-gpt2", tp, dtype},
          replacing("h.1.mlp.act", {1},
                    [=](RankContext& context, const Instruction&, const std::vector<Tensor>& inputs) {
                      return changed(context, inputs[0], [&](std::vector<double>& values, std::size_t) {
                        for (double& v : values) v = silu(v);
                      });
                    }),
          "h.1.mlp.act", "wrong_function");
    }
  }
}

TEST(DiagnoseOps, NotANumber) {
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const MakeFault poison = [](const Program&) {
        Fault fault;
        fault.after = [](RankContext& context, const Instruction& instruction,
                         std::vector<Tensor>& outputs) {
          if (instruction.site != "layers.1.mlp.up_proj" || context.rank() != 1) return;
          context.device().poison(context.stream(), outputs[0].row_range(2, 5));
        };
        return fault;
      };
      expect_cause({"tiny-llama", tp, dtype}, poison, "layers.1.mlp.up_proj", "never_written");
      expect_cause({"tiny-llama", tp, dtype},
                   changing({"layers.1.mlp.up_proj",
                             {0},
                             {},
                             [](std::vector<double>& values, std::size_t, const KeptValues&,
                                RankContext&) { values[11] = HUGE_VAL; }}),
                   "layers.1.mlp.up_proj", "not_finite");
    }
  }
}

TEST(DiagnoseOps, Precision) {
  for (const int tp : {2, 4}) {
    const auto rounded = [](DType to) {
      return changing(
          {"layers.1.mlp.down_proj",
           {0, 1},
           {},
           [to](std::vector<double>& values, std::size_t, const KeptValues&, RankContext&) {
             values = round_to(to, {static_cast<std::int64_t>(values.size())}, values).to_f64();
           }});
    };
    expect_cause({"tiny-llama", tp, DType::f64}, rounded(DType::f32), "layers.1.mlp.down_proj",
                 "precision_too_low");
    expect_cause({"tiny-llama", tp, DType::f32}, rounded(DType::bf16), "layers.1.mlp.down_proj",
                 "precision_too_low");
  }
}

/// A shard made of other rows or columns of the whole weight: source(index in the whole) for every index the rank holds.
MakeFault weight_of(const Model& model, DType dtype, const std::string& tensor, int rank,
                    std::function<double(const HostTensor& whole, std::int64_t row, std::int64_t col)> value) {
  const auto store = std::make_shared<WeightStore>(model, dtype);
  return [=](const Program& program) {
    Fault fault;
    fault.prepare = [=, &program](RankContext& context) {
      if (context.rank() != rank) return;
      const Module& module = *program.find_module(tensor.substr(0, tensor.rfind('.')));
      const HostTensor whole = store->whole(tensor);
      const Ranges rows = program.plan.rows_of(module, rank),
                   cols = program.plan.cols_of(module, rank);
      std::vector<double> values;
      for (const Range& r : rows) {
        for (std::int64_t row = r.begin; row < r.end; ++row) {
          for (const Range& c : cols) {
            for (std::int64_t col = c.begin; col < c.end; ++col)
              values.push_back(value(whole, row, col));
          }
        }
      }
      const Tensor out = context.device().allocate(context.stream(), dtype, total(rows), total(cols));
      context.device().upload(context.stream(), round_to(dtype, {total(rows), total(cols)}, values),
                              out);
      context.set_weight(tensor, out);
    };
    return fault;
  };
}

TEST(DiagnoseOps, Weights) {
  const Model model = load_model("tiny-llama");
  const Model gpt2 = load_model("tiny-gpt2");
  const auto at = [](const HostTensor& w, std::int64_t row, std::int64_t col) {
    return w.at(row * w.cols() + col);
  };
  for (const int tp : {2, 4}) {
    for (const DType dtype : kTwo) {
      const Setting setting{"tiny-llama", tp, dtype};
      // 8 q heads of 8: the next rank's rows, one row off, two heads exchanged, one element.
      const std::int64_t rows = 64 / tp;
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.self_attn.q_proj.weight", 0,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return at(w, r + rows, c);
                             }),
                   "layers.1.self_attn.q_proj", "weight_of_wrong_rank");
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.self_attn.q_proj.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return at(w, r - 1, c);
                             }),
                   "layers.1.self_attn.q_proj", "weight_shifted");
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.self_attn.q_proj.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               const std::int64_t head = r / 8, first = rows / 8;
                               const std::int64_t other = head == first       ? first + 1
                                                          : head == first + 1 ? first
                                                                              : head;
                               return at(w, other * 8 + r % 8, c);
                             }),
                   "layers.1.self_attn.q_proj", "permuted_heads");
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.self_attn.v_proj.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return at(w, r - 8, c);
                             }),
                   "layers.1.self_attn.v_proj", "kv_head_of_neighbour");
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.mlp.down_proj.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return at(w, r, c - 1);
                             }),
                   "layers.1.mlp.down_proj.partial", "weight_shifted");
      expect_cause(setting,
                   weight_of(model, dtype, "layers.1.mlp.down_proj.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return r == 3 && c % 7 == 0 ? 0.25 : at(w, r, c);
                             }),
                   "layers.1.mlp.down_proj.partial", "weight_differs");
      const auto exchanged = [](const Program&) {
        Fault made;
        made.prepare = [](RankContext& context) {
          if (context.rank() != 1) return;
          const Tensor gate = context.weight("layers.1.mlp.gate_proj.weight"),
                       up = context.weight("layers.1.mlp.up_proj.weight");
          context.set_weight("layers.1.mlp.gate_proj.weight", up);
          context.set_weight("layers.1.mlp.up_proj.weight", gate);
        };
        return made;
      };
      expect_cause(setting, exchanged, "layers.1.mlp.gate_proj", "weight_of_wrong_module");
      // q | k | v cut as one block of rows.
      if (144 % tp == 0) {
        const std::int64_t each = 144 / tp;
        const std::int64_t own = 48 / tp;
        if (48 % (tp * 8) == 0) {
          expect_cause({"tiny-gpt2", tp, dtype},
                       weight_of(gpt2, dtype, "h.1.attn.c_attn.weight", 1,
                                 [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                                   const std::int64_t section = r / 48,
                                                      local = section * own + (r - section * 48 - own);
                                   return at(w, each + local, c);
                                 }),
                       "h.1.attn.c_attn", "permuted_sections");
        }
      }
      expect_cause({"tiny-gpt2", tp, dtype},
                   weight_of(gpt2, dtype, "wte.weight", 1,
                             [=](const HostTensor& w, std::int64_t r, std::int64_t c) {
                               return at(w, r - 1, c);
                             }),
                   "wte.partial", "weight_shifted");
    }
  }
}

// A plan that forgot its all_reduce, forced.
TEST(DiagnoseOps, ForcedPlan) {
  const std::string plan = R"plan({ "name": "forgotten", "mesh": ["tp"],
    "weights": {
      "embed_tokens": {"tp": "shard(vocab)"}, "lm_head": {"tp": "shard(vocab)"},
      "layers.*.self_attn.q_proj": {"tp": "shard(out by head)"},
      "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
      "layers.*.self_attn.o_proj": {"tp": "shard(in by head)"},
      "layers.*.mlp.{gate,up}_proj": {"tp": "shard(out)"}, "layers.*.mlp.down_proj": {"tp": "shard(in)"} },
    "collectives": {
      "embed_tokens.out": "all_reduce(sum, tp)", "layers.*.self_attn.o_proj.out": "all_reduce(sum, tp)",
      "lm_head.out": "all_gather(vocab, tp)" } })plan";
  for (const int tp : {2, 4}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        Setting setting{"tiny-llama", tp, dtype, phase, plan};
        setting.force = true;
        const CellReport cell = expect_cause(setting, nullptr, "layers.0.mlp.down_proj",
                                             "one_ranks_partial");
        ASSERT_TRUE(cell.first.has_value());
        EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("equals one rank's partial"));
        EXPECT_THAT(cell.first->cause, ::testing::HasSubstr("all_reduce(sum, tp)"));
        ASSERT_TRUE(cell.first->propagated.has_value());
        EXPECT_EQ(cell.first->propagated->tap, "layers.0.mlp.down_proj");
        EXPECT_GT(cell.first->propagated->error, cell.first->propagated->limit);
      }
    }
  }
}

// A run that passes has no first failure, so no cause.
TEST(DiagnoseOps, CorrectRunsAreNeverDiagnosed) {
  for (const std::string model : {"tiny-llama", "tiny-gpt2", "tiny-mistral"}) {
    for (const int tp : {2, 4}) {
      for (const DType dtype : {DType::f64, DType::bf16}) {
        const CellReport cell =
            verified({model, model == "tiny-mistral" ? 2 : tp, dtype, Phase::decode}).cells.at(0);
        EXPECT_EQ(cell.verdict, Verdict::passed);
        EXPECT_FALSE(cell.first.has_value());
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
