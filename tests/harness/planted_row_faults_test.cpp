// SPDX-License-Identifier: Apache-2.0
// Faults of plans that cut rows: sequences dealt out to ranks, tokens between blocks. What goes wrong there is which
// rows a rank has: of another sequence, at other positions, put together in another order.
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {
namespace {

const Setting kSequences{"tiny-llama", 3, DType::f64, Phase::prefill, "attention_dp"};
const Setting kTokens{"tiny-llama", 3, DType::f64, Phase::prefill, "megatron_sp"};

/// Changes the numbers of one value on some ranks, once it is computed.
MakeFault change(const std::string& site, std::vector<int> ranks,
                 std::function<void(std::vector<double>&, std::size_t)> how, std::size_t output = 0) {
  return [=](const Program&) {
    Fault fault;
    fault.after = [=](RankContext& context, const Instruction& instruction,
                      std::vector<Tensor>& outputs) {
      const bool here = std::find(ranks.begin(), ranks.end(), context.rank()) != ranks.end();
      if (here && instruction.site == site)
        outputs[output] = changed(context, outputs[output], how);
    };
    return fault;
  };
}

/// The last row first.
void turn_rows(std::vector<double>& values, std::size_t cols) {
  const std::vector<double> old = values;
  const std::size_t rows = values.size() / cols;
  for (std::size_t row = 0; row < rows; ++row)
    std::copy_n(old.begin() + static_cast<std::ptrdiff_t>((rows - 1 - row) * cols), cols,
                values.begin() + static_cast<std::ptrdiff_t>(row * cols));
}

TEST(PlantedRows, ARankTakesTheRowsOfItsSequencesInAnotherOrder) {
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    for (const DType dtype : {DType::f64, DType::bf16}) {
      // Rank 0 of 3 has sequences 0 and 3.
      expect_caught(at(kSequences, 3, dtype, phase), change("embed_tokens", {0}, turn_rows),
                    {"embed_tokens", {0}, {}, {}});
    }
  }
}

// What a library's all_gather gives: the ranks' parts one after the other, where sequences were dealt out in turn.
TEST(PlantedRows, GatheredSequencesStandInTheOrderOfRanks) {
  const auto by_rank = [](const Program& program) {
    Fault fault;
    fault.after = [&program](RankContext& context, const Instruction& instruction,
                             std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.1.mlp.gate_proj.in") return;
      const Layout& cut = program.value(instruction.inputs[0]).layout;
      outputs[0] = changed(context, outputs[0], [&](std::vector<double>& values, std::size_t cols) {
        const std::vector<double> old = values;
        auto to = values.begin();
        for (int rank = 0; rank < program.mesh.ranks(); ++rank) {
          for (const Range& rows : cut.row_ranges(program.mesh, rank, context.step())) {
            to = std::copy(old.begin() + rows.begin * static_cast<std::int64_t>(cols),
                           old.begin() + rows.end * static_cast<std::int64_t>(cols), to);
          }
        }
      });
    };
    return fault;
  };
  expect_caught(kSequences, by_rank, {"layers.1.mlp.gate_proj.in", all_ranks(3), {}, {}});
  expect_caught(at(kSequences, 2, DType::bf16, Phase::decode), by_rank,
                {"layers.1.mlp.gate_proj.in", all_ranks(2), {}, {}});
}

// Positions counted from the rank's first row instead of looked up: right for sequence 0, whose rows come first.
TEST(PlantedRows, RopeTakesThePositionsOfTheFirstRows) {
  const auto first_rows = [](const Program&) {
    Fault fault;
    fault.replace = [](RankContext& context, const Instruction& instruction,
                       const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != "layers.0.self_attn.q_rot") return false;
      const Tensor out = context.allocate(instruction.outputs[0]);
      const auto [cos, sin] = context.rope_table({{0, inputs[0].rows}});
      context.device().rope(context.stream(), inputs[0], cos, sin,
                            context.program().config.head_dim, RopeConvention::half_split, out);
      outputs = {out};
      return true;
    };
    return fault;
  };
  const Setting decode = at(kSequences, 2, DType::f64, Phase::decode);
  // Three sequences of 14, 13 and 12 tokens: rank 0 has the first and the last, so its second row is off too.
  expect_caught(decode, first_rows, {"layers.0.self_attn.q_rot", {0, 1}, Phase::decode, Gate::g3});
}

TEST(PlantedRows, ACacheGivesAnotherSequencesKeys) {
  // Rank 0 of 2 has sequences 0 and 2; in decode it reads both, one after the other.
  const CellReport keys = expect_caught(at(kSequences, 2, DType::f64, Phase::decode),
                                        change("layers.2.self_attn.k_cache", {0}, turn_rows),
                                        {"layers.2.self_attn.k_cache", {0}, {}, {}});
  EXPECT_FALSE(keys.gates.at(Gate::g0).passed);
  const CellReport values = expect_caught(at(kSequences, 2, DType::bf16, Phase::decode),
                                          change("layers.0.self_attn.k_cache", {0}, turn_rows, 1),
                                          {"layers.0.self_attn.v_cache", {0}, {}, {}});
  EXPECT_FALSE(values.gates.at(Gate::g0).passed);
}

TEST(PlantedRows, ARankNormsItsTokensInAnotherOrder) {
  expect_caught(kTokens, change("layers.1.input_layernorm", {2}, turn_rows),
                {"layers.1.input_layernorm", {2}, {}, Gate::g3});
}

TEST(PlantedRows, ScatteredSumsStandInAnotherOrder) {
  expect_caught(at(kTokens, 4, DType::f64), change("layers.1.self_attn.o_proj", {1}, turn_rows),
                {"layers.1.self_attn.o_proj", {1}, {}, Gate::g3});
}

// A decode step's one token: the rank that has it leaves it empty-handed to the others.
TEST(PlantedRows, TheOnlyTokenOfAStepIsLost) {
  expect_caught(at(kTokens, 4, DType::f64, Phase::decode),
                change("layers.0.mlp.gate_proj.in", {3},
                       [](std::vector<double>& values, std::size_t) {
                         if (values.size() == 48) std::fill(values.begin(), values.end(), 0.0);
                       }),
                {"layers.0.mlp.gate_proj.in", {3}, Phase::decode, {}});
}

}  // namespace
}  // namespace shardcheck::testing
