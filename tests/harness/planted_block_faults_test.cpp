// SPDX-License-Identifier: Apache-2.0
// What one rank does wrong inside a block: positions, caches, masks, norms.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sharded/op.hpp"
#include "tests/harness/planted_fault.hpp"

namespace shardcheck::testing {
namespace {

const std::vector<DType> kTwo{DType::f64, DType::bf16};

bool is_op(const Instruction& instruction, std::string_view op) {
  return instruction.op != nullptr && instruction.op->name() == op;
}

// ---- positions and caches ----

/// rope of an instruction's input with every position moved by `shift`.
Tensor rotated(RankContext& context, const Instruction& instruction, const Tensor& input,
               std::int64_t shift) {
  Device& device = context.device();
  const Config& config = context.program().config;
  const DType dtype = accumulate_dtype(context.settings().storage);
  std::vector<double> cosines, sines;
  for (const std::int64_t position : context.positions()) {
    for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
      const double angle = static_cast<double>(position + shift) /
                           std::pow(config.rope.theta, 2.0 * static_cast<double>(i) /
                                                           static_cast<double>(config.head_dim));
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
  }
  const std::int64_t rows = input.rows, cols = config.head_dim / 2;
  const Tensor cos = device.allocate(context.stream(), dtype, rows, cols), sin = device.allocate(context.stream(), dtype, rows, cols);
  device.upload(context.stream(), round_to(dtype, {rows, cols}, cosines), cos);
  device.upload(context.stream(), round_to(dtype, {rows, cols}, sines), sin);
  const Tensor out = context.allocate(instruction.outputs[0]);
  device.rope(context.stream(), input, cos, sin, config.head_dim, RopeConvention::half_split, out);
  return out;
}

// From the first decode step on one rank counts positions from one too far. Only new tokens are wrong: rotated all
// alike, a whole sequence would not show it.
TEST(PlantedBlockFaults, RopePositionOffByOneInDecode) {
  struct Off {
    std::string site, first;
    int tp, rank;
  };
  for (const Off& off :
       std::vector<Off>{{"", "layers.0.self_attn.q_rot", 2, 1},
                        {"layers.1.self_attn.k_rot", "layers.1.self_attn.k_rot", 3, 0},
                        {"layers.2.self_attn.q_rot", "layers.2.self_attn.q_rot", 4, 2}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.replace = [&off](RankContext& context, const Instruction& instruction,
                            const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (!is_op(instruction, "rope") || context.rank() != off.rank) return false;
        if (context.step().phase != Phase::decode) return false;
        if (!off.site.empty() && instruction.site != off.site) return false;
        outputs = {rotated(context, instruction, inputs[0], 1)};
        return true;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      expect_caught({"tiny-llama", off.tp, dtype, Phase::decode}, fault,
                    {off.first, {off.rank}, Phase::decode, Gate::g3});
    }
  }
}

// With the position right, the stand-in for rope is rope: what the test above shows is the shift.
TEST(PlantedBlockFaults, RopeWithoutAShiftPasses) {
  const MakeFault same = [](const Program&) {
    Fault made;
    made.replace = [](RankContext& context, const Instruction& instruction,
                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (!is_op(instruction, "rope")) return false;
      outputs = {rotated(context, instruction, inputs[0], 0)};
      return true;
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    EXPECT_TRUE(verified({"tiny-llama", 2, dtype, Phase::decode}, same).passed());
  }
}

// One rank's new key (or value) doesn't reach its cache: attention reads what stood there.
TEST(PlantedBlockFaults, StaleCacheEntry) {
  struct Stale {
    std::string model, attention;
    bool keys;
    int tp, rank, step;
  };
  for (const Stale& stale : std::vector<Stale>{{"tiny-llama", "layers.0.self_attn", true, 2, 1, 0},
                                               {"tiny-llama", "layers.1.self_attn", false, 3, 0, 2},
                                               {"tiny-llama", "layers.2.self_attn", true, 4, 3, 3},
                                               {"tiny-mistral", "layers.2.self_attn", true, 2, 0, 1},
                                               {"tiny-gpt2", "h.1.attn", false, 3, 2, 1}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.after = [&stale](RankContext& context, const Instruction& instruction,
                            std::vector<Tensor>& outputs) {
        if (!is_op(instruction, "cache") || instruction.module != stale.attention) return;
        if (context.rank() != stale.rank || context.step().phase != Phase::decode) return;
        if (context.step().index != stale.step) return;
        // The outputs are views of the cache: the entry stays as it is for all later steps.
        const Tensor& cache = outputs[stale.keys ? 0 : 1];
        context.device().copy(context.stream(), cache.row_range(cache.rows - 2, cache.rows - 1),
                              cache.row_range(cache.rows - 1, cache.rows));
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      const std::string tap = stale.attention + (stale.keys ? ".k_cache" : ".v_cache");
      const CellReport cell = expect_caught({stale.model, stale.tp, dtype, Phase::decode}, fault,
                                            {tap, {stale.rank}, Phase::decode});
      EXPECT_FALSE(cell.gates.at(Gate::g0).passed);
      EXPECT_GE(cell.first->step, stale.step);
    }
  }
}

// An entry of an earlier step changes under attention's eyes, long after it was written.
TEST(PlantedBlockFaults, CacheEntryOverwrittenLater) {
  const MakeFault fault = [](const Program&) {
    Fault made;
    made.after = [](RankContext& context, const Instruction& instruction, std::vector<Tensor>& outputs) {
      if (!is_op(instruction, "cache") || instruction.module != "layers.1.self_attn") return;
      if (context.rank() != 1 || context.step().phase != Phase::decode) return;
      if (context.step().index != 2) return;
      context.device().copy(context.stream(), outputs[1].row_range(4, 5), outputs[1].row_range(0, 1));
    };
    return made;
  };
  for (const DType dtype : kTwo) {
    const CellReport cell = expect_caught({"tiny-llama", 2, dtype, Phase::decode}, fault,
                                          {"layers.1.self_attn.v_cache", {1}, Phase::decode});
    EXPECT_FALSE(cell.gates.at(Gate::g0).passed);
  }
}

// ---- attention and norms ----

/// One sequence's attention with another window, or with queries that are told a later position than theirs.
MakeFault other_mask(const std::string& attention, int rank, std::int64_t window, std::int64_t ahead) {
  return [=](const Program& program) {
    Fault fault;
    fault.replace = [=, &program](RankContext& context, const Instruction& instruction,
                                  const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
      if (instruction.site != attention + ".attn" || context.rank() != rank) return false;
      Device& device = context.device();
      const auto d = static_cast<std::int64_t>(instruction.attributes.at("head_dim"));
      const StepSequence sequence = context.step().sequences.at(0);
      const std::int64_t heads = inputs[0].cols / d, kv_heads = inputs[1].cols / d;
      std::vector<std::int32_t> map;  // these cuts give every rank whole groups
      for (std::int64_t h = 0; h < heads; ++h)
        map.push_back(static_cast<std::int32_t>(h * kv_heads / heads));
      const DType dtype = accumulate_dtype(context.settings().storage);
      const AttentionState state{device.allocate(context.stream(), dtype, sequence.count, heads),
                                 device.allocate(context.stream(), dtype, sequence.count, heads),
                                 device.allocate(context.stream(), dtype, sequence.count, heads * d)};
      const std::int64_t end = sequence.first + sequence.count;
      const AttentionShape shape{d, instruction.attributes.at("scale"), sequence.first + ahead,
                                 end - inputs[1].rows, window};
      outputs = {context.allocate(instruction.outputs[0])};
      device.attention_partial(context.stream(), inputs[0], inputs[1], inputs[2], map, shape, state);
      device.attention_finish(context.stream(), state, d, outputs[0]);
      return true;
    };
    return fault;
  };
}

TEST(PlantedBlockFaults, WindowOfAnotherLength) {
  for (const DType dtype : kTwo) {
    for (const std::int64_t window : {3, 5}) {
      expect_caught({"tiny-mistral", 2, dtype}, other_mask("layers.1.self_attn", 1, window, 0),
                    {"layers.1.self_attn.attn", {1}, {}, Gate::g3});
    }
    // A window where there is none.
    expect_caught({"tiny-llama", 2, dtype}, other_mask("layers.2.self_attn", 0, 6, 0),
                  {"layers.2.self_attn.attn", {0}, {}, Gate::g3});
    EXPECT_TRUE(
        verified({"tiny-mistral", 2, dtype}, other_mask("layers.1.self_attn", 1, 4, 0)).passed());
  }
}

TEST(PlantedBlockFaults, UnmaskedFutureKey) {
  for (const DType dtype : kTwo) {
    for (const int rank : {0, 3}) {
      expect_caught({"tiny-llama", 4, dtype}, other_mask("layers.0.self_attn", rank, 0, 1),
                    {"layers.0.self_attn.attn", {rank}, {}, Gate::g3});
    }
    EXPECT_TRUE(verified({"tiny-llama", 4, dtype}, other_mask("layers.0.self_attn", 3, 0, 0)).passed());
  }
}

// Every rank with the wrong epsilon: the replicas agree, the reference doesn't.
TEST(PlantedBlockFaults, NormWithAnotherEpsilon) {
  struct Norm {
    std::string model, site;
    std::vector<int> ranks;
  };
  for (const Norm& norm : std::vector<Norm>{{"tiny-llama", "layers.0.input_layernorm", {0, 1, 2}},
                                            {"tiny-llama", "norm", {0, 1, 2}},
                                            {"tiny-llama", "layers.1.post_attention_layernorm", {1}},
                                            {"tiny-qwen3", "layers.1.self_attn.k_norm", {1}},
                                            {"tiny-olmo2", "layers.2.self_attn.q_norm", {0, 1, 2}},
                                            {"tiny-olmo2", "layers.0.post_attention_layernorm", {2}},
                                            {"tiny-gpt2", "h.1.ln_2", {2}},
                                            {"tiny-gpt2", "h.0.ln_1", {0, 1, 2}}}) {
    const MakeFault fault = [&](const Program&) {
      Fault made;
      made.replace = [&norm](RankContext& context, const Instruction& instruction,
                             const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (instruction.site != norm.site) return false;
        if (std::find(norm.ranks.begin(), norm.ranks.end(), context.rank()) == norm.ranks.end())
          return false;
        Instruction other = instruction;
        other.attributes["eps"] *= 10.0;
        outputs = instruction.op->run(other, context, inputs);
        return true;
      };
      return made;
    };
    for (const DType dtype : {DType::f64, DType::f32}) {
      expect_caught({norm.model, 3, dtype}, fault, {norm.site, norm.ranks, {}, Gate::g3});
    }
  }
}

// One rank normalises all its heads together: right where it has one head only, so the rank has two or more.
TEST(PlantedBlockFaults, HeadsNormalisedTogether) {
  struct Together {
    std::string site;
    int tp, rank;
  };
  for (const Together& together : std::vector<Together>{{"layers.0.self_attn.q_norm", 3, 0},
                                                        {"layers.1.self_attn.k_norm", 2, 1},
                                                        {"layers.2.self_attn.q_norm", 4, 3}}) {
    const MakeFault fault = [&](const Program& program) {
      const double eps = program.config.norm_eps;
      Fault made;
      made.replace = [&together, eps](RankContext& context, const Instruction& instruction,
                                      const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (instruction.site != together.site || context.rank() != together.rank) return false;
        const std::vector<double> weight =
            context.device().to_host(context.stream(), context.weight(instruction.module + ".weight")).to_f64();
        outputs = {changed(context, inputs[0], [&](std::vector<double>& values, std::size_t cols) {
          for (std::size_t row = 0; row < values.size(); row += cols) {
            double squares = 0.0;
            for (std::size_t i = 0; i < cols; ++i) squares += values[row + i] * values[row + i];
            const double rms = std::sqrt(squares / static_cast<double>(cols) + eps);
            for (std::size_t i = 0; i < cols; ++i)
              values[row + i] = values[row + i] / rms * weight[i % weight.size()];
          }
        })};
        return true;
      };
      return made;
    };
    for (const DType dtype : kTwo) {
      for (const Phase phase : {Phase::prefill, Phase::decode}) {
        expect_caught({"tiny-qwen3", together.tp, dtype, phase}, fault,
                      {together.site, {together.rank}, {}, Gate::g3});
      }
    }
  }
}

}  // namespace
}  // namespace shardcheck::testing
