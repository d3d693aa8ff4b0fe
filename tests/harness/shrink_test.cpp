// SPDX-License-Identifier: Apache-2.0
// Each rule by which a model is shrunk for a proof, with a fault that would hide without it.
#include "harness/proof/shrink.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>

#include "harness/proof/made_model.hpp"
#include "harness/proof/proof_steps.hpp"
#include "harness/proof/whole_comparison.hpp"
#include "kernels/field/field_device.hpp"
#include "model/shipped.hpp"
#include "model/sources.hpp"
#include "tests/harness/proof_rig.hpp"
#include "tests/sharded/small_models.hpp"

namespace shardcheck::testing {
namespace {

Config shrunk(const Model& model, const Plan& plan, const Mesh& mesh) {
  return shrunken(model, plan, resolve(plan, model, mesh));
}
Config shrunk(const Model& model, int tp) { return shrunk(model, megatron(), line(tp)); }

/// The proof's verdict with a fault in the sharded program, at the model's own size or shrunk.
ProofVerdict verdict(const Model& model, bool shrink, ProveOptions options, int tp = 2) {
  options.meshes = {line(tp)};
  options.phases = {Phase::prefill};
  options.shrink = shrink;
  options.counterexample = false;
  return prove(model, megatron(), options, builtin_parts()).cells.at(0).verdict;
}

ProveOptions with_fault(std::function<Fault(const Program&)> make) {
  return proof_of({}, std::move(make));
}

/// Whether the two programs differ over the field on these steps.
bool differ(const Model& model, const Plan& plan, int tp, const std::vector<Step>& steps,
            const MakeFault& fault) {
  const VerifyParts parts = builtin_parts();
  const ProveOptions options = proof_of({}, fault);
  const ProofPair pair = make_proof_pair(model, model.config(), MadeWeights::normal, plan, line(tp),
                                         options, parts.ops);
  FieldDevice device(5);
  WeightStore weights(*pair.model, DType::field, [&](const std::string& tensor, HostTensor& whole) {
    const auto out = whole.as_mutable<field::Residue>();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = device.elements(tensor).at(i);
  });
  const ProofRun whole = run_for_proof(pair.whole, device, weights, DType::field, steps, nullptr,
                                       parts);
  const auto planted = fault_of(pair, DType::field, steps.back().phase, options);
  const ProofRun sharded = run_for_proof(pair.sharded, device, weights, DType::field, steps,
                                         planted.get(), parts);
  return compare_runs(sharded, whole, weights, pair.plan, device).first.has_value();
}

std::map<Phase, std::vector<Step>> steps_of(const Model& model, const Plan& plan, const Mesh& mesh) {
  return proof_steps(build_program(model, resolve(plan, model, mesh), builtin_ops()));
}

Fault in_place_of(
    const std::string& op,
    std::function<void(RankContext&, const Instruction&, const std::vector<Tensor>&, std::vector<Tensor>&)>
        compute) {
  Fault fault;
  fault.replace = [=](RankContext& context, const Instruction& instruction,
                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
    if (instruction.op == nullptr || instruction.op->name() != op) return false;
    compute(context, instruction, inputs, outputs);
    return !outputs.empty();
  };
  return fault;
}

TEST(Shrink, AWindowIsMadeSmallerThanTheSequence) {
  const Model model = shapes({.model_type = "mistral", .window = 4096});
  const Config small = shrunk(model, 2);
  for (const auto& window : small.windows) EXPECT_EQ(window, 5);
  // Attention that looks past its window: seen where the window ends before the sequence does.
  const ProveOptions past = with_fault([](const Program&) {
    return in_place_of("attention", [](RankContext& context, const Instruction& instruction,
                                       const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      for (const StepSequence& part : context.step().sequences) {
        if (part.first > 0) return;  // the cache has dropped what lies before the window
      }
      Instruction without = instruction;
      without.attributes["window"] = 0.0;
      outputs = instruction.op->run(without, context, inputs);
    });
  });
  EXPECT_EQ(verdict(model, false, past), ProofVerdict::equal);
  EXPECT_EQ(verdict(model, true, past), ProofVerdict::wrong);
}

TEST(Shrink, SequencesAreLongerThanTwoWindows) {
  for (const std::int64_t window : {1, 3, 4096}) {
    const Model model = shapes({.model_type = "mistral", .window = window});
    const Model small = made_model(model, shrunk(model, 3), MadeWeights::normal);
    for (const auto& [phase, steps] : steps_of(small, megatron(), line(3))) {
      std::map<std::int64_t, std::int64_t> length;
      for (const Step& step : steps) {
        for (const StepSequence& part : step.sequences) length[part.sequence] += part.count;
      }
      EXPECT_GT(length[0], 2 * std::min<std::int64_t>(window, 5));
    }
  }
}

TEST(Shrink, HiddenIsNoProductOfHeads) {
  const Model model = shapes({.heads = 8, .kv_heads = 4, .head_dim = 8, .hidden = 64});
  const Config small = shrunk(model, 2);
  EXPECT_NE(small.hidden_size, small.q_size());
  // The scale of attention from hidden / heads, as if that were always head_dim.
  ProveOptions scale = proof_of({});
  scale.edit_program = [](Program& program) {
    const Config& config = program.config;
    for (auto& [phase, instructions] : program.instructions) {
      for (Instruction& instruction : instructions) {
        if (instruction.op == nullptr || instruction.op->name() != "attention") continue;
        instruction.attributes["scale"] = 1.0 / std::sqrt(static_cast<double>(config.hidden_size) /
                                                          static_cast<double>(config.num_heads));
      }
    }
  };
  EXPECT_EQ(verdict(model, false, scale), ProofVerdict::equal);
  EXPECT_EQ(verdict(model, true, scale), ProofVerdict::wrong);
}

TEST(Shrink, EqualDimensionsAreMadeDifferent) {
  const Model model = shapes(
      {.heads = 4, .kv_heads = 2, .head_dim = 8, .hidden = 48, .ffn = 48, .vocab = 48});
  const Config small = shrunk(model, 2);
  // A norm that divides by the width of the MLP.
  const ProveOptions wrong_width = with_fault([](const Program&) {
    return in_place_of("rms_norm", [](RankContext& context, const Instruction& instruction,
                                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      const std::int64_t width = context.program().config.intermediate_size;
      if (width < inputs[0].cols) return;
      const Tensor squares = context.device().allocate(
          context.stream(), accumulate_dtype(context.settings().storage), inputs[0].rows, 1);
      context.device().square_sum(context.stream(), inputs[0], squares);
      outputs = {context.allocate(instruction.outputs[0])};
      context.device().rms_apply(context.stream(), inputs[0],
                                 context.weight(instruction.module + ".weight"), squares, width,
                                 instruction.attributes.at("eps"), outputs[0]);
    });
  });
  EXPECT_GT(small.intermediate_size, small.hidden_size);
  EXPECT_EQ(verdict(model, false, wrong_width), ProofVerdict::equal);
  EXPECT_EQ(verdict(model, true, wrong_width), ProofVerdict::wrong);
}

TEST(Shrink, HeadDimKeepsTheConventionsOfRopeApart) {
  const ProveOptions interleaved = with_fault([](const Program&) {
    return in_place_of("rope", [](RankContext& context, const Instruction& instruction,
                                  const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      const auto [cos, sin] = context.rope_table(context.rows_of(instruction.outputs[0]));
      outputs = {context.allocate(instruction.outputs[0])};
      context.device().rope(context.stream(), inputs[0], cos, sin, context.program().config.head_dim,
                            RopeConvention::interleaved, outputs[0]);
    });
  });
  EXPECT_EQ(verdict(shapes({.head_dim = 2}), false, interleaved), ProofVerdict::equal);
  const Model model = shapes({.head_dim = 64});
  EXPECT_GE(shrunk(model, 2).head_dim, 8);
  EXPECT_LT(shrunk(model, 2).head_dim, 16);
  EXPECT_EQ(verdict(model, true, interleaved), ProofVerdict::wrong);
  EXPECT_EQ(shrunk(shapes({.head_dim = 4}), 2).head_dim, 4);  // one already smaller stays
}

TEST(Shrink, HeadsStay) {
  const Model model = shapes({.heads = 8, .kv_heads = 4, .head_dim = 64});
  const Config small = shrunk(model, 2);
  EXPECT_EQ(small.num_heads, 8);
  EXPECT_EQ(small.num_kv_heads, 4);
  // kv head = q head modulo kv heads, where it is q head / group: the same with one q head for each kv head.
  const ProveOptions modulo = with_fault([](const Program&) {
    return in_place_of("attention", [](RankContext& context, const Instruction& instruction,
                                       const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      const std::int64_t d = context.program().config.head_dim, heads = inputs[0].cols / d,
                         kv = inputs[1].cols / d;
      // Head h of q is put where the op serves it with kv head h % kv, and its output back.
      const auto place = [&](std::int64_t h) { return (h % kv) * (heads / kv) + h / kv; };
      const auto move = [&](const Tensor& from, bool there) {
        const Tensor to = copy_of(context, from);
        for (std::int64_t h = 0; h < heads; ++h) {
          const std::int64_t a = there ? h : place(h), b = there ? place(h) : h;
          context.device().copy(context.stream(), from.col_range(a * d, a * d + d),
                                to.col_range(b * d, b * d + d));
        }
        return to;
      };
      outputs = instruction.op->run(instruction, context,
                                    {move(inputs[0], true), inputs[1], inputs[2]});
      outputs[0] = move(outputs[0], false);
    });
  });
  EXPECT_EQ(verdict(shapes({.heads = 4, .kv_heads = 4}), true, modulo), ProofVerdict::equal);
  EXPECT_EQ(verdict(model, true, modulo), ProofVerdict::wrong);
}

TEST(Shrink, RemaindersStay) {
  // A cut into floor(n / P) rows for each rank, so that the remainder is nobody's.
  ProveOptions floor_cut = proof_of({});
  floor_cut.edit_plan = [](ResolvedPlan& plan) {
    for (auto& [path, placement] : plan.weights) {
      if (path.find(".mlp.") == std::string::npos) continue;
      std::vector<Ranges>& cut = placement.rows.empty() ? placement.cols : placement.rows;
      const std::int64_t share = total(cut.back());
      for (std::size_t rank = 0; rank < cut.size(); ++rank) {
        const auto begin = static_cast<std::int64_t>(rank) * share;
        cut[rank] = {{begin, begin + share}};
      }
    }
  };
  EXPECT_EQ(verdict(shapes({.ffn = 1008}), true, floor_cut, 3), ProofVerdict::equal);
  for (const std::int64_t ffn : {1009, 1010}) {
    EXPECT_EQ(shrunk(shapes({.ffn = ffn}), 3).intermediate_size % 3, ffn % 3);
    EXPECT_EQ(verdict(shapes({.ffn = ffn}), true, floor_cut, 3), ProofVerdict::wrong);
  }
}

TEST(Shrink, ARankHasTwoOfEverything) {
  // Rows of a shard in the reverse order: the same where a rank has one.
  const ProveOptions reversed = with_fault([](const Program&) {
    Fault fault;
    fault.prepare = [](RankContext& context) {
      const std::string name = "layers.0.mlp.up_proj.weight";
      const Tensor shard = context.weight(name), out = copy_of(context, shard);
      for (std::int64_t row = 0; row < shard.rows; ++row) {
        context.device().copy(context.stream(), shard.row_range(row, row + 1),
                              out.row_range(shard.rows - 1 - row, shard.rows - row));
      }
      context.set_weight(name, out);
    };
    return fault;
  });
  EXPECT_EQ(verdict(shapes({.ffn = 2}), false, reversed), ProofVerdict::equal);
  const Model model = shapes({.ffn = 4096});
  EXPECT_GE(shrunk(model, 2).intermediate_size, 4);
  EXPECT_EQ(verdict(model, true, reversed), ProofVerdict::wrong);
}

TEST(Shrink, IdsHoldTheFirstAndLastVocabularyRowOfEachRank) {
  const Model model = shapes({.vocab = 61});
  constexpr int kRanks = 4;
  const Program program = build_program(model, resolve(megatron(), model, line(kRanks)), builtin_ops());
  const std::vector<Step> steps = proof_steps(program).at(Phase::prefill);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Range rows = program.plan.placement("embed_tokens").rows[static_cast<std::size_t>(rank)][0];
    for (const std::int64_t row : {rows.begin, rows.end - 1}) {
      // The row is another one of the same shard.
      const MakeFault loader = [=](const Program&) {
        Fault fault;
        fault.prepare = [=](RankContext& context) {
          if (context.rank() != rank) return;
          const Tensor out = copy_of(context, context.weight("embed_tokens.weight"));
          const std::int64_t local = row - rows.begin;
          context.device().copy(context.stream(), out.row_range(1, 2), out.row_range(local, local + 1));
          context.set_weight("embed_tokens.weight", out);
        };
        return fault;
      };
      EXPECT_TRUE(differ(model, megatron(), kRanks, steps, loader)) << rank << " " << row;
      std::vector<Step> elsewhere = steps;
      for (Step& step : elsewhere) {
        for (std::int64_t& id : step.ids) id = rows.begin + 1;
      }
      EXPECT_FALSE(differ(model, megatron(), kRanks, elsewhere, loader)) << rank << " " << row;
    }
  }
}

TEST(Shrink, StepsHaveARemainderAndFewerTokensThanRanks) {
  const Model model = shapes({});
  for (const int tp : {2, 3, 4, 8}) {
    for (const auto& [phase, steps] : steps_of(model, megatron(), line(tp))) {
      EXPECT_NE(steps.front().tokens() % tp, 0) << tp;
      EXPECT_LT(steps.back().tokens(), tp);
      EXPECT_EQ(steps.back().phase, phase);
      EXPECT_GT(steps.size(), 2u);
    }
  }
  const std::vector<Step> steps = steps_of(model, megatron(), line(2)).at(Phase::prefill);
  const auto when = [](std::function<bool(const Step&)> acts) {
    return [=](const Program&) {
      Fault fault;
      fault.after = [=](RankContext& context, const Instruction& instruction,
                        std::vector<Tensor>& outputs) {
        if (context.rank() == 1 && instruction.site == "layers.0.mlp.act" && acts(context.step()))
          outputs[0] = rotated(context, outputs[0]);
      };
      return fault;
    };
  };
  const auto uneven = when(
      [](const Step& step) { return step.tokens() > 2 && step.tokens() % 2 != 0; });
  const auto few = when([](const Step& step) { return step.tokens() < 2; });
  EXPECT_TRUE(differ(model, megatron(), 2, steps, uneven));
  EXPECT_TRUE(differ(model, megatron(), 2, steps, few));
  const std::vector<Step> even{{Phase::prefill, 0, {{0, 0, 4}}, {1, 2, 3, 4}}};
  EXPECT_FALSE(differ(model, megatron(), 2, even, uneven));
  EXPECT_FALSE(differ(model, megatron(), 2, even, few));
}

TEST(Shrink, ThereAreMoreSequencesThanRanksThatShareThem) {
  const Model model = load_model("tiny-llama");
  for (const int tp : {2, 4}) {
    for (const auto& [phase, steps] : steps_of(model, load_plan("attention_dp"), line(tp)))
      EXPECT_EQ(static_cast<int>(steps.front().sequences.size()), tp + 1);
  }
}

TEST(Shrink, EveryLayerIsKept) {
  const Model model = shapes({.layers = 7});
  EXPECT_EQ(shrunk(model, 2).num_layers, 7);
  const ProveOptions last = with_fault([](const Program&) {
    Fault fault;
    fault.after = [](RankContext& context, const Instruction& instruction,
                     std::vector<Tensor>& outputs) {
      if (context.rank() == 0 && instruction.site == "layers.6.mlp.act")
        outputs[0] = rotated(context, outputs[0]);
    };
    return fault;
  });
  EXPECT_EQ(verdict(model, true, last), ProofVerdict::wrong);
}

TEST(Shrink, ExplicitRangesKeepTheirDimension) {
  const std::string ranges = R"json({"tp": {"shard": "out", "by": "row", "ranges": {"2": [[[0,100]],[[100,1000]]]}}})json";
  std::string columns = ranges;
  columns.replace(columns.find("out"), 3, "in");
  const Plan plan = tp_plan("\"layers.*.mlp.{gate,up}_proj\": " + ranges +
                                ", \"layers.*.mlp.down_proj\": " + columns + ", " + kAttentionCuts,
                            std::string(kAttentionSum) + ", " + kMlpSum);
  const Model model = shapes({.hidden = 512, .ffn = 1000, .vocab = 900});
  const Config small = shrunk(model, plan, line(2));
  EXPECT_EQ(small.intermediate_size, 1000);
  EXPECT_LT(small.hidden_size, 32);
  EXPECT_LT(small.vocab_size, 32);
  ProveOptions options = proof_of({});
  EXPECT_TRUE(prove(model, plan, options, builtin_parts()).passed());
}

TEST(Shrink, ExplicitRangesOfOneRankKeepTheirDimension) {
  const Model model = shapes({.hidden = 512, .ffn = 1000, .vocab = 900});
  const std::string sum = R"json("lm_head.in": "slice(features, tp)", "lm_head.out": "all_reduce(sum, tp)")json";
  for (const auto& [shard, end, steps] : {std::tuple<const char*, int, std::string>{"vocab", 900, kHeadGather},
                                          std::tuple<const char*, int, std::string>{"in", 512, sum}}) {
    const Plan plan = tp_plan(fmt::format(R"json("lm_head": {{"tp": {{"shard": "{0}", "ranges":
        {{"1": [[[0,{1}]]], "2": [[[0,100]],[[100,{1}]]]}}}}}})json", shard, end), steps);
    const Config small = shrunk(model, plan, line(1));
    EXPECT_EQ(small.vocab_size == 900, end == 900);
    EXPECT_EQ(small.hidden_size == 512, end == 512);
    ProveOptions options = proof_of({});
    options.meshes = {line(1), line(2)};
    EXPECT_TRUE(prove(model, plan, options, builtin_parts()).passed()) << shard;
  }
}

// Two heads of 2 in chunks of ceil(4 / 3) rows: the borders lie between heads at this width, not at a larger one.
TEST(Shrink, APlanThatIsLegalAtTheModelsWidthOnlyIsProvedThere) {
  const Model model = shapes({.heads = 2, .kv_heads = 2, .head_dim = 2, .hidden = 4, .ffn = 11, .vocab = 2});
  const Plan plan = tp_plan(R"json("layers.*.self_attn.q_proj": {"tp": "shard(out by chunk)"},
                                   "layers.*.self_attn.{k,v}_proj": {"tp": "shard(out by kv_head)"},
                                   "layers.*.mlp.up_proj": {"tp": "shard(out by chunk)"})json",
                            R"json("layers.*.self_attn.o_proj.in": "all_gather(features, tp)",
                                   "layers.*.mlp.up_proj.out": "all_gather(features, tp)")json");
  ProveOptions options = proof_of({});
  options.meshes = {line(3)};
  const ProveReport report = prove(model, plan, options, builtin_parts());
  EXPECT_TRUE(report.passed());
  EXPECT_FALSE(report.cells.at(0).shrunk);
  EXPECT_EQ(report.cells.at(0).shape.head_dim, 2);
}

/// Whether each rank of torch.chunk's cut is full, short or empty.
std::vector<int> pattern(std::int64_t n, int ranks) {
  const Partition cut = Partition::chunked(n, ranks);
  std::vector<int> result;
  for (int rank = 0; rank < ranks; ++rank)
    result.push_back(cut.size(rank) == cut.size(0) ? 2 : cut.size(rank) > 0 ? 1 : 0);
  return result;
}

TEST(Shrink, ChunksLeaveTheSameRanksShortOrEmpty) {
  const Plan plan = tp_plan(
      R"json("layers.*.mlp.{gate,up}_proj": {"tp": "shard(out by chunk)"},
             "layers.*.mlp.down_proj": {"tp": "shard(in by chunk)"})json",
      kMlpSum);
  for (const int tp : {2, 3, 4, 5, 8}) {
    for (std::int64_t ffn = 1000; ffn < 1009; ++ffn) {
      const std::int64_t small = shrunk(shapes({.ffn = ffn}), plan, line(tp)).intermediate_size;
      EXPECT_LT(small, 100);
      EXPECT_EQ(small % tp, ffn % tp);
      EXPECT_EQ(pattern(small, tp), pattern(ffn, tp)) << ffn << " -> " << small << " on " << tp;
    }
  }
}

/// Weights that say they are stored in 8 bits.
class Quantised final : public WeightSource {
 public:
  explicit Quantised(const Config& config) : inner_(synthetic_source(1, modules(config))) {}
  std::optional<std::vector<std::int64_t>> shape(std::string_view tensor) const override {
    return inner_->shape(tensor);
  }
  DType dtype(std::string_view) const override { return DType::q8_0; }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<double> out) const override {
    inner_->read_rows(tensor, begin, end, out);
  }
  void read_rows(std::string_view tensor, std::int64_t begin, std::int64_t end,
                 std::span<float> out) const override {
    inner_->read_rows(tensor, begin, end, out);
  }

 private:
  std::unique_ptr<const WeightSource> inner_;
};

TEST(Shrink, QuantisationGroupsStayWhole) {
  const Plan plan = tp_plan(
      R"json("layers.*.mlp.down_proj": {"tp": "shard(in by group)"}, "layers.*.mlp.{gate,up}_proj":
             {"tp": {"shard": "out", "by": "row", "ranges": {"3": [[[0,1376]],[[1376,2752]],[[2752,4096]]]}}})json",
      kMlpSum);
  const Plan only_down = tp_plan(
      R"json("layers.*.mlp.down_proj": {"tp": "shard(in by group)"})json", kMlpSum);
  const Config config = parse_config(config_text({.ffn = 4096}), "small.json");
  const Model model(config, std::make_unique<Quantised>(config));
  EXPECT_EQ(shrunk(model, plan, line(3)).intermediate_size, 4096);
  const std::int64_t small = shrunk(model, only_down, line(3)).intermediate_size;
  EXPECT_EQ(small % 32, 0);
  EXPECT_EQ((small / 32) % 3, (4096 / 32) % 3);
  EXPECT_GE(small, 2 * 32 * 3);
  EXPECT_LT(small, 3 * 32 * 3);
}

TEST(Shrink, AxesThatCutOneDimensionCountTogether) {
  const Plan plan = parse_plan(R"json({"name": "two", "mesh": ["a", "b"],
      "weights": {"layers.*.mlp.{gate,up}_proj": {"a": "shard(out)", "b": "shard(out)"},
                  "layers.*.mlp.down_proj": {"a": "shard(in)", "b": "shard(in)"}},
      "collectives": {"layers.*.mlp.down_proj.out": "all_reduce(sum, [a, b])"}})json",
                               "two.json");
  const Mesh mesh{{{"a", 3}, {"b", 2}}};
  for (const std::int64_t ffn : {1000, 1001, 1003}) {
    const std::int64_t small = shrunk(shapes({.ffn = ffn}), plan, mesh).intermediate_size;
    EXPECT_EQ(small % 6, ffn % 6);
    EXPECT_GE(small, 12);
  }
}

/// Widths that a module has as its rows or columns, without those of one.
std::set<std::int64_t> widths(const Config& config) {
  std::set<std::int64_t> all;
  for (const Module& module : modules(config)) all.insert({module.out, module.in});
  return all;
}

/// For every shipped config and plan: the shrunken model breaks the same rules, at the same taps.
TEST(Shrink, ShippedModelsKeepWhatLintSays) {
  for (const char* name : {"llama-3.1-405b", "llama-2-7b", "gpt2-medium", "qwen2-7b", "mistral-7b",
                           "smollm2-135m", "tiny-qwen3", "tiny-olmo2", "tiny-phi3"}) {
    ModelOptions options;
    options.shapes_only = true;
    options.config.num_layers = 2;
    const Model model = load_model(name, options);
    for (const char* plan_name :
         {"megatron", "megatron_sp", "row_first", "column_gather", "attention_dp"}) {
      const Plan plan = load_plan(plan_name);
      for (const int tp : {2, 3, 8}) {
        const ::testing::ScopedTrace trace(
            __FILE__, __LINE__, std::string(name) + " " + plan_name + " " + std::to_string(tp));
        std::optional<ResolvedPlan> resolved;
        try {
          resolved = resolve(plan, model, line(tp));
        } catch (const std::exception&) {
          continue;  // fewer heads than ranks
        }
        const Config small = shrunken(model, plan, *resolved);
        const Model made = made_model(model, small, MadeWeights::normal);
        EXPECT_LE(small.hidden_size, 64);
        // As many different widths as there are expressions of them in the large model, or more.
        EXPECT_GE(widths(small).size(), widths(model.config()).size());
        const Program large = build_program(model, *resolved, builtin_ops());
        const Program program = build_program(made, resolve(plan, made, line(tp)), builtin_ops());
        ASSERT_EQ(program.findings.size(), large.findings.size());
        for (std::size_t i = 0; i < large.findings.size(); ++i) {
          EXPECT_EQ(program.findings[i].rule, large.findings[i].rule);
          EXPECT_EQ(program.findings[i].tap, large.findings[i].tap);
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
