// SPDX-License-Identifier: Apache-2.0
// Loaders that give a rank the wrong rows or columns of a weight.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {
namespace {

/// The weight as the whole model has it, in the run's dtype.
Tensor whole(RankContext& context, WeightStore& store, const std::string& tensor) {
  return context.device().adopt(context.stream(), store.whole(tensor));
}

/// Rows or columns [begin, end) of a weight in place of [at, at + end - begin) of the rank's shard.
struct Splice {
  std::string tensor;
  bool rows = true;
  std::int64_t at, begin, end;
};

/// A copy of a shard with a stretch taken from elsewhere in the whole weight.
Tensor spliced(RankContext& context, WeightStore& store, const Splice& splice) {
  const Tensor shard = copy_of(context, context.weight(splice.tensor));
  const Tensor all = whole(context, store, splice.tensor);
  const std::int64_t n = splice.end - splice.begin;
  if (splice.rows) {
    const Tensor from = all.row_range(splice.begin, splice.end);
    context.device().copy(context.stream(), from, shard.row_range(splice.at, splice.at + n));
  } else {
    // The rank's own rows are all rows of a row-parallel weight.
    const Tensor from = all.col_range(splice.begin, splice.end);
    context.device().copy(context.stream(), from, shard.col_range(splice.at, splice.at + n));
  }
  return shard;
}

/// A run of `setting` whose rank `rank` has this splice in its shard.
MakeFault wrong_shard(const Model& model, DType dtype, int rank, const Splice& splice) {
  const auto store = std::make_shared<WeightStore>(model, dtype);
  return [store, rank, splice](const Program&) {
    Fault fault;
    fault.prepare = [store, rank, splice](RankContext& context) {
      if (context.rank() != rank) return;
      context.set_weight(splice.tensor, spliced(context, *store, splice));
    };
    return fault;
  };
}

const std::vector<DType> kTwo{DType::f64, DType::bf16};

// Two ranks have each other's rows: both are named.
TEST(PlantedWeightFaults, KeyRowsOfTwoRanksExchanged) {
  struct Swap {
    std::string model, module;
    int tp, a, b;
  };
  for (const Swap& swap : std::vector<Swap>{{"tiny-llama", "layers.0.self_attn.k_proj", 2, 0, 1},
                                            {"tiny-llama", "layers.1.self_attn.k_proj", 4, 1, 3},
                                            {"tiny-llama", "layers.2.self_attn.k_proj", 4, 0, 2},
                                            {"tiny-odd-vocab", "layers.1.self_attn.k_proj", 3, 1, 2},
                                            {"tiny-qwen2", "layers.0.self_attn.k_proj", 2, 0, 1}}) {
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const Setting setting{swap.model, swap.tp, dtype, phase};
        const Model model = load_model(swap.model);
        const auto store = std::make_shared<WeightStore>(model, dtype);
        const MakeFault fault = [&](const Program& program) {
          Fault made;
          made.prepare = [&swap, &program, store](RankContext& context) {
            const int rank = context.rank();
            if (rank != swap.a && rank != swap.b) return;
            const Module& module = *program.find_module(swap.module);
            const Ranges theirs = program.plan.rows_of(module, rank == swap.a ? swap.b : swap.a);
            context.set_weight(module.weight(), store->shard(module.weight(), theirs, {{0, module.in}},
                                                             context.device(), context.stream()));
          };
          return made;
        };
        const CellReport cell = expect_caught(setting, fault,
                                              {swap.module, {swap.a, swap.b}, {}, Gate::g3});
        EXPECT_FALSE(cell.gates.at(Gate::g0).passed) << "the shards are not the plan's slices";
        EXPECT_NE(cell.first->got, cell.first->expected);
      }
    }
  }
}

// 9 q heads and 3 kv heads on 4 ranks: rank 2 needs kv heads 1 and 2 and computes one from the other's rows. The twin
// that another rank holds of the same head is right.
TEST(PlantedWeightFaults, KvHeadFromTheNeighboursWeights) {
  const Model model = load_model("tiny-odd-vocab");
  const std::int64_t d = model.config().head_dim;
  for (const DType dtype : kTwo) {
    for (const std::string module : {"layers.0.self_attn.v_proj", "layers.1.self_attn.k_proj"}) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        // Local head 0 of rank 2 is kv head 1: it gets head 2's rows.
        const Splice splice{module + ".weight", true, 0, 2 * d, 3 * d};
        const CellReport cell = expect_caught({"tiny-odd-vocab", 4, dtype, phase},
                                              wrong_shard(model, dtype, 2, splice),
                                              {module, {2}, {}, Gate::g3});
        EXPECT_GE(cell.first->feature, d);
        EXPECT_LT(cell.first->feature, 2 * d);
        EXPECT_EQ(cell.first->local_feature, cell.first->feature - d);
      }
    }
  }
}

// A loader that is one row off at a border of the vocabulary: seen only by the ids of that row.
TEST(PlantedWeightFaults, VocabularyRowOffAtTheBorder) {
  struct Border {
    std::string model, table, tap;
    int tp, rank;
  };
  for (const Border& border :
       std::vector<Border>{{"tiny-odd-vocab", "embed_tokens", "embed_tokens.partial", 3, 1},
                           {"tiny-llama", "embed_tokens", "embed_tokens.partial", 4, 3},
                           {"tiny-gpt2", "wte", "wte.partial", 2, 1}}) {
    const Model model = load_model(border.model);
    const Partition rows = Partition::balanced(model.config().vocab_size, border.tp);
    const std::int64_t begin = rows.of(border.rank)[0].begin, end = rows.of(border.rank)[0].end;
    for (const DType dtype : kTwo) {
      const Setting setting{border.model, border.tp, dtype};
      // The first row holds the row before it.
      const Splice first{border.table + ".weight", true, 0, begin - 1, begin};
      // The last row holds the row before it.
      const Splice last{border.table + ".weight", true, end - begin - 1, end - 2, end - 1};
      for (const Splice& splice : {first, last}) {
        const CellReport cell = expect_caught(setting, wrong_shard(model, dtype, border.rank, splice),
                                              {border.tap, {border.rank}, {}, Gate::g3});
        EXPECT_FALSE(cell.gates.at(Gate::g0).passed);
      }
    }
  }
}

// phi3's fused weights: a loader that takes a rank's gate rows from up, or its keys from the head next to its own.
TEST(PlantedWeightFaults, RowsOfAnotherSectionOfAFusedWeight) {
  const Model model = load_model("tiny-phi3");
  const Config& config = model.config();
  const std::int64_t inner = config.intermediate_size, d = config.head_dim;
  for (const int rank : {0, 2}) {
    const Range mine = Partition::balanced(inner, 3).of(rank)[0];
    const std::string gate_up = "layers.1.mlp.gate_up_proj", qkv = "layers.2.self_attn.qkv_proj";
    const Splice up_as_gate{gate_up + ".weight", true, 0, inner + mine.begin, inner + mine.end};
    // 8 heads on 3 ranks: the first has q heads 0 to 2 and kv head 0, the last 6 and 7 and kv head 1.
    const std::int64_t q_rows = (rank == 0 ? 3 : 2) * d, other_kv_head = rank == 0 ? 1 : 0;
    const std::int64_t keys = config.q_size() + other_kv_head * d;
    const Splice neighbours_keys{qkv + ".weight", true, q_rows, keys, keys + d};
    for (const DType dtype : kTwo) {
      expect_caught({"tiny-phi3", 3, dtype}, wrong_shard(model, dtype, rank, up_as_gate),
                    {gate_up, {rank}, {}, Gate::g3});
      expect_caught({"tiny-phi3", 3, dtype, Phase::decode}, wrong_shard(model, dtype, rank, neighbours_keys),
                    {qkv, {rank}, {}, Gate::g3});
    }
  }
}

// lm_head one row off: a column-parallel linear, found at its part of the logits.
TEST(PlantedWeightFaults, HeadRowOffAtTheBorder) {
  for (const std::string name : {"tiny-odd-vocab", "tiny-llama", "tiny-gpt2"}) {
    const Model model = load_model(name);
    const Partition rows = Partition::balanced(model.config().vocab_size, 3);
    const std::int64_t begin = rows.of(2)[0].begin;
    for (const DType dtype : kTwo) {
      const Splice splice{"lm_head.weight", true, 0, begin - 1, begin};
      const CellReport cell = expect_caught({name, 3, dtype}, wrong_shard(model, dtype, 2, splice),
                                            {"lm_head.partial", {2}, {}, Gate::g3});
      EXPECT_EQ(cell.first->feature, begin);
      EXPECT_EQ(cell.first->local_feature, 0);
    }
  }
}

// Every rank believes that its vocabulary begins one row early: a token there is looked up twice.
TEST(PlantedWeightFaults, VocabularyRangeBeginsOneRowEarly) {
  const MakeFault fault = [](const Program& program) {
    Fault made;
    made.replace = [&program](RankContext& context, const Instruction& instruction,
                              const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != "embed_tokens.partial" || context.rank() != 1) return false;
      const Ranges own = program.plan.rows_of(*program.find_module("embed_tokens"), 1);
      const std::pair<std::int64_t, std::int64_t> early{own[0].begin - 1, own[0].end - 1};
      outputs = {context.allocate(instruction.outputs[0])};
      context.device().embedding(context.stream(), inputs[0], context.weight("embed_tokens.weight"),
                                 std::span(&early, 1), outputs[0]);
      return true;
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    expect_caught({"tiny-llama", 3, dtype}, fault, {"embed_tokens.partial", {1}, {}, Gate::g3});
  }
}

// Row-parallel: the columns of a neighbour, at a border and in the middle of the shard.
TEST(PlantedWeightFaults, ColumnsFromTheNeighbour) {
  const Model model = load_model("tiny-llama");
  for (const DType dtype : kTwo) {
    for (const std::string module : {"layers.0.self_attn.o_proj", "layers.2.mlp.down_proj"}) {
      const Splice splice{module + ".weight", false, 3, 1, 4};
      const CellReport cell = expect_caught({"tiny-llama", 2, dtype},
                                            wrong_shard(model, dtype, 1, splice),
                                            {module + ".partial", {1}, {}, Gate::g3});
      EXPECT_FALSE(cell.gates.at(Gate::g0).passed);
    }
  }
}

// gate and up exchanged on one rank: both are wrong, the gate comes first.
TEST(PlantedWeightFaults, GateAndUpExchanged) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.prepare = [](RankContext& context) {
      if (context.rank() != 2) return;
      const Tensor gate = context.weight("layers.1.mlp.gate_proj.weight");
      const Tensor up = context.weight("layers.1.mlp.up_proj.weight");
      context.set_weight("layers.1.mlp.gate_proj.weight", up);
      context.set_weight("layers.1.mlp.up_proj.weight", gate);
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    expect_caught({"tiny-llama", 4, dtype}, fault, {"layers.1.mlp.gate_proj", {2}, {}, Gate::g3});
  }
}

// The fused q | k | v cut as one block of rows instead of section by section.
TEST(PlantedWeightFaults, FusedRowsCutAsOneBlock) {
  const Model model = load_model("tiny-gpt2");
  for (const DType dtype : kTwo) {
    const auto store = std::make_shared<WeightStore>(model, dtype);
    const MakeFault fault = [&](const Program& program) {
      Fault made;
      made.prepare = [&program, store](RankContext& context) {
        const Module& module = *program.find_module("h.1.attn.c_attn");
        const std::int64_t each = module.out / program.mesh.ranks();
        const Ranges block{{context.rank() * each, (context.rank() + 1) * each}};
        context.set_weight(module.weight(), store->shard(module.weight(), block, {{0, module.in}},
                                                         context.device(), context.stream()));
      };
      return made;
    };
    // Rank 0's first third are q rows either way, the rest of its block is not.
    expect_caught({"tiny-gpt2", 3, dtype}, fault, {"h.1.attn.c_attn", {0, 1, 2}, {}, Gate::g3});
  }
}

// One element of one shard: G0 sees the bits, whether or not an error budget could.
TEST(PlantedWeightFaults, OneBitOfOneShard) {
  for (const std::string tensor :
       {"layers.1.self_attn.q_proj.weight", "layers.1.post_attention_layernorm.weight",
        "norm.weight", "layers.2.mlp.down_proj.weight"}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.prepare = [&tensor](RankContext& context) {
        if (context.rank() != 1) return;
        context.set_weight(
            tensor, changed(context, context.weight(tensor), [](std::vector<double>& values, auto) {
              values[5] = std::nextafter(static_cast<float>(values[5]), 2.0F);
            }));
      };
      return made;
    };
    std::string tap = tensor.substr(0, tensor.rfind('.'));
    if (tap.ends_with("down_proj")) tap += ".partial";  // what a rank makes of its columns
    const CellReport cell = expect_caught({"tiny-llama", 3, DType::f32}, fault,
                                          {tap, {1}, {}, Gate::g0});
    EXPECT_NE(cell.first->cause.find(tensor), std::string::npos) << cell.first->cause;
  }
}

// Biases: a rank's slice begins one element late.
TEST(PlantedWeightFaults, BiasSliceIsShifted) {
  for (const DType dtype : kTwo) {
    const Model model = load_model("tiny-llama-bias");
    const auto store = std::make_shared<WeightStore>(model, dtype);
    const MakeFault fault = [&](const Program& program) {
      Fault made;
      made.prepare = [&program, store](RankContext& context) {
        if (context.rank() != 0) return;
        const Module& module = *program.find_module("layers.1.self_attn.q_proj");
        const Ranges own = program.plan.rows_of(module, 0);
        context.set_weight(module.bias(), store->shard(module.bias(), {{0, 1}},
                                                       {{own[0].begin + 1, own[0].end + 1}},
                                                       context.device(), context.stream()));
      };
      return made;
    };
    expect_caught({"tiny-llama-bias", 2, dtype}, fault,
                  {"layers.1.self_attn.q_proj", {0}, {}, Gate::g3});
  }
}

}  // namespace
}  // namespace shardcheck::testing
