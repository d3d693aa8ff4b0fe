// SPDX-License-Identifier: Apache-2.0
// What ranks do wrong with sums over ranks, and with the buffers between a producer and its consumers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "sharded/collectives.hpp"
#include "sharded/op.hpp"
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kTwo{DType::f64, DType::bf16};
const std::vector<DType> kAll{DType::f64, DType::f32, DType::bf16, DType::f16};

bool is_op(const Instruction& instruction, std::string_view op) {
  return instruction.op != nullptr && instruction.op->name() == op;
}

/// Changes the numbers of one value on some ranks, before it is tapped.
template <typename Change>
MakeFault change_value(const std::string& site, const std::vector<int>& ranks, Change change) {
  return [=](const Program&) {
    Fault fault;
    fault.after = [=](RankContext& context, const Instruction& instruction,
                      std::vector<Tensor>& outputs) {
      if (instruction.site != site) return;
      if (std::find(ranks.begin(), ranks.end(), context.rank()) == ranks.end()) return;
      outputs[0] = changed(context, outputs[0], change);
    };
    return fault;
  };
}

// ---- sums over ranks ----

// The bias of a row-parallel linear is added by every rank before the sum, and not after it.
TEST(PlantedFaults, RowParallelBiasOnEveryRank) {
  struct Biased {
    std::string model, module;
    int tp;
  };
  for (const Biased& biased : std::vector<Biased>{{"tiny-llama-bias", "layers.0.self_attn.o_proj", 2},
                                                  {"tiny-llama-bias", "layers.1.mlp.down_proj", 3},
                                                  {"tiny-gpt2", "h.0.attn.c_proj", 4},
                                                  {"tiny-gpt2", "h.1.mlp.c_proj", 2}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.after = [&](RankContext& context, const Instruction& instruction,
                       std::vector<Tensor>& outputs) {
        if (instruction.site != biased.module + ".partial") return;
        const Tensor sum = context.device().allocate(context.stream(), outputs[0].dtype, outputs[0].rows,
                                                     outputs[0].cols);
        context.device().bias(context.stream(), outputs[0], context.weight(biased.module + ".bias"),
                              sum);
        outputs[0] = sum;
      };
      made.replace = [&](RankContext& context, const Instruction& instruction,
                         const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (!is_op(instruction, "bias") || instruction.site != biased.module) return false;
        outputs = {copy_of(context, inputs[0])};
        return true;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        expect_caught({biased.model, biased.tp, dtype, phase}, fault,
                      {biased.module + ".partial", all_ranks(biased.tp), {}, Gate::g3});
      }
    }
  }
}

// The residual is added to each rank's partial sum, so the sum holds it once per rank.
TEST(PlantedFaults, ResidualBeforeTheReduction) {
  struct Block {
    std::string residual, module, add;
    int tp;
  };
  for (const Block& block : std::vector<Block>{
           {"embed_tokens", "layers.0.self_attn.o_proj", "layers.0.self_attn.resid", 2},
           {"layers.1.self_attn.resid", "layers.1.mlp.down_proj", "layers.1", 3},
           {"layers.2.self_attn.resid", "layers.2.mlp.down_proj", "layers.2", 4}}) {
    const MakeFault fault = [&](const Program& program) {
      const PerRank<Tensor> residual = per_rank<Tensor>(program.mesh.ranks());
      Fault made;
      made.after = [&block, residual](RankContext& context, const Instruction& instruction,
                                      std::vector<Tensor>& outputs) {
        if (instruction.site == block.residual) mine(residual, context) = outputs[0];
        if (instruction.site != block.module + ".partial") return;
        const Tensor sum = context.device().allocate(context.stream(), outputs[0].dtype, outputs[0].rows,
                                                     outputs[0].cols);
        context.device().add(context.stream(), mine(residual, context), outputs[0], sum);
        outputs[0] = sum;
      };
      made.replace = [&block](RankContext& context, const Instruction& instruction,
                              const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (instruction.site != block.add) return false;
        outputs = {copy_of(context, inputs[1])};
        return true;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      expect_caught({"tiny-llama", block.tp, dtype, Phase::decode}, fault,
                    {block.module + ".partial", all_ranks(block.tp), {}, Gate::g3});
    }
  }
}

TEST(PlantedFaults, NanInOneRanksPartial) {
  for (const DType dtype : kAll) {
    for (const int rank : {0, 2}) {
      const MakeFault fault = change_value(
          "layers.1.mlp.down_proj.partial", {rank}, [](std::vector<double>& values, std::size_t cols) {
            values[cols + 3] = std::numeric_limits<double>::quiet_NaN();
          });
      const CellReport cell = expect_caught(
          {"tiny-llama", 3, dtype}, fault, {"layers.1.mlp.down_proj.partial", {rank}, {}, Gate::g3});
      EXPECT_EQ(cell.first->row, 1);
      EXPECT_EQ(cell.first->feature, 3);
      EXPECT_TRUE(std::isnan(cell.first->got));
      EXPECT_FALSE(cell.first->cause.empty());
      EXPECT_FALSE(cell.gates.at(dtype == DType::f64 ? Gate::g2 : Gate::g4).passed);
    }
  }
}

// A scale that is 2 % off, as a quantisation scale of one rank's shard may be.
TEST(PlantedFaults, OneRanksPartialScaled) {
  for (const DType dtype : kAll) {
    struct Scaled {
      std::string site;
      int tp, rank;
    };
    for (const Scaled& scaled : std::vector<Scaled>{{"layers.0.self_attn.o_proj.partial", 2, 1},
                                                    {"layers.1.mlp.down_proj.partial", 3, 0},
                                                    {"layers.2.mlp.down_proj.partial", 4, 3}}) {
      const MakeFault fault = change_value(scaled.site, {scaled.rank},
                                           [](std::vector<double>& values, std::size_t) {
                                             for (double& value : values) value *= 1.02;
                                           });
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        expect_caught({"tiny-llama", scaled.tp, dtype, phase}, fault,
                      {scaled.site, {scaled.rank}, {}, Gate::g3});
      }
    }
  }
}

// One rank goes on with its own partial sum: the others are right, whichever rank it is.
TEST(PlantedFaults, AllReduceLeavesOneRankWithItsOwnPartial) {
  struct Left {
    std::string site;
    int tp, rank;
  };
  for (const Left& left : std::vector<Left>{{"embed_tokens", 2, 1},
                                            {"layers.0.mlp.down_proj", 3, 0},
                                            {"layers.1.self_attn.o_proj", 3, 2},
                                            {"layers.2.self_attn.o_proj", 4, 0}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.replace = [&left](RankContext& context, const Instruction& instruction,
                             const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (instruction.site != left.site || instruction.op != nullptr) return false;
        outputs = {run_collective(instruction, context, inputs[0])};
        if (context.rank() == left.rank) outputs = {copy_of(context, inputs[0])};
        return true;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        const CellReport cell = expect_caught({"tiny-llama", left.tp, dtype, phase}, fault,
                                              {left.site, {left.rank}, {}, Gate::g3});
        EXPECT_FALSE(cell.gates.at(Gate::g0).passed) << "replicas differ";
      }
    }
  }
}

// No rank reduces at all: the numbers are wrong at that module, and the ledger lacks the collective.
TEST(PlantedFaults, CollectiveNeverIssued) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.replace = [](RankContext& context, const Instruction& instruction,
                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.1.mlp.down_proj" || instruction.op != nullptr) return false;
      outputs = {copy_of(context, inputs[0])};
      return true;
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    const CellReport cell = expect_caught({"tiny-llama", 3, dtype}, fault,
                                          {"layers.1.mlp.down_proj", all_ranks(3), {}, Gate::g3});
    EXPECT_FALSE(cell.gates.at(Gate::audit).passed);
  }
}

// A collective too many changes no number: only the audit sees it.
TEST(PlantedFaults, CollectiveIssuedTwice) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.replace = [](RankContext& context, const Instruction& instruction,
                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.2.self_attn.o_proj" || instruction.op != nullptr)
        return false;
      run_collective(instruction, context, inputs[0]);
      outputs = {run_collective(instruction, context, inputs[0])};
      return true;
    };
    return made;
  };
  const CellReport cell = expect_caught({"tiny-llama", 2, DType::f32}, fault,
                                        {"layers.2.self_attn.o_proj", all_ranks(2), {}, Gate::audit});
  EXPECT_TRUE(cell.gates.at(Gate::g0).passed);
  EXPECT_TRUE(cell.gates.at(Gate::g3).passed);
}

// ---- buffers between producer and consumer ----

// Something writes into a value after it was produced (and recorded) and before it is read.
TEST(PlantedFaults, OverwrittenBeforeItIsRead) {
  struct Overwritten {
    std::string site;
    int tp, rank;
    Phase phase;
  };
  for (const Overwritten& hit :
       std::vector<Overwritten>{{"embed_tokens", 2, 0, Phase::prefill},
                                {"layers.1.self_attn.attn", 3, 2, Phase::prefill},
                                {"layers.2.mlp.act", 4, 1, Phase::decode}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.between = [&hit](RankContext& context, const Instruction& instruction,
                            std::vector<Tensor>& outputs) {
        if (instruction.site != hit.site || context.rank() != hit.rank) return;
        if (context.step().phase != hit.phase) return;
        // In place: its last element takes the first one's value.
        const Tensor row = outputs[0].row_range(0, 1);
        context.device().copy(context.stream(), row.col_range(0, 1),
                              row.col_range(row.cols - 1, row.cols));
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      expect_caught({"tiny-llama", hit.tp, dtype, hit.phase}, fault,
                    {hit.site, {hit.rank}, hit.phase, Gate::g0});
    }
  }
}

// A consumer reads the buffer of the step before.
TEST(PlantedFaults, ConsumerBoundToThePreviousStep) {
  for (const std::string site : {"layers.0.input_layernorm", "layers.2.self_attn.q_rot"}) {
    const MakeFault fault = [&](const Program& program) {
      const PerRank<Tensor> before = per_rank<Tensor>(program.mesh.ranks());
      Fault made;
      made.between = [&site, before](RankContext& context, const Instruction& instruction,
                                     std::vector<Tensor>& outputs) {
        if (instruction.site != site || context.rank() != 1) return;
        const Tensor now = outputs[0];
        // Steps of one token have buffers of one shape.
        if (context.step().phase == Phase::decode && context.step().index > 0)
          outputs[0] = mine(before, context);
        mine(before, context) = now;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      const CellReport cell = expect_caught({"tiny-llama", 2, dtype, Phase::decode}, fault,
                                            {site, {1}, Phase::decode, Gate::g0});
      EXPECT_EQ(cell.first->step, 1);
    }
  }
}

// A receive buffer is given to the next collective while a value in it is still to be read.
TEST(PlantedFaults, ReceiveBufferReusedTooEarly) {
  const MakeFault fault = [](const Program& program) {
    const PerRank<Tensor> kept = per_rank<Tensor>(program.mesh.ranks());
    Fault made;
    made.between = [kept](RankContext& context, const Instruction& instruction,
                          std::vector<Tensor>& outputs) {
      if (context.rank() != 2) return;
      // The residual sum is read by the norm at once, and again by the add after the MLP.
      if (instruction.site == "layers.1.self_attn.resid") mine(kept, context) = outputs[0];
      if (instruction.site == "layers.1.mlp.down_proj")
        context.device().copy(context.stream(), outputs[0], mine(kept, context));
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    expect_caught({"tiny-llama", 3, dtype}, fault, {"layers.1.self_attn.resid", {2}, {}, Gate::g0});
  }
}

}  // namespace
}  // namespace shardcheck::testing
