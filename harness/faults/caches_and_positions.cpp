// SPDX-License-Identifier: Apache-2.0
// Kind O: what attention sees - the KV cache, positions, masks and the scale of the scores.
#include <algorithm>
#include <cmath>

#include "harness/faults/anatomy.hpp"
#include "harness/faults/kinds.hpp"
#include "harness/faults/tensors.hpp"
#include "sharded/op.hpp"

namespace shardcheck::faults {
namespace {

std::vector<std::string> ops(const Program& program, Phase phase, std::string_view op) {
  return sites(program, phase, [op](const Program&, const Instruction& i) { return is_op(i, op); });
}

/// The entry of the step's last token stays what the position before holds.
std::optional<Planted> stale_entry(const Program& program, const Spot& spot, std::size_t side) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  Planted planted;
  planted.first = {program.value(site.outputs[side]).name, {spot.rank}};
  planted.after = [spot, side](RankContext& context, const Instruction& i,
                               std::vector<Tensor>& outputs) {
    if (i.site != spot.place || context.rank() != spot.rank || context.step().phase != Phase::decode)
      return;
    const Tensor& cache = outputs[side];
    if (cache.rows < 2) return;
    // Where the output is a view of the cache, the entry stays so for all later steps.
    context.device().copy(context.stream(), cache.row_range(cache.rows - 2, cache.rows - 1),
                          cache.row_range(cache.rows - 1, cache.rows));
  };
  return planted;
}

std::optional<Planted> entries_rolled(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  Planted planted;
  planted.first = {program.value(site.outputs[1]).name, {spot.rank}};
  planted.after = [spot](RankContext& context, const Instruction& i, std::vector<Tensor>& outputs) {
    if (i.site != spot.place || context.rank() != spot.rank) return;
    outputs[1] = rolled_rows(context, outputs[1], 1);
  };
  return planted;
}

std::optional<Planted> cached_heads_rolled(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  const std::int64_t d = program.config.head_dim;
  if (program.value(site.outputs[0]).layout.local_features(spot.rank) < 2 * d) return std::nullopt;
  Planted planted;
  planted.first = {program.value(site.outputs[0]).name, {spot.rank}};
  planted.after = [spot, d](RankContext& context, const Instruction& i, std::vector<Tensor>& outputs) {
    if (i.site == spot.place && context.rank() == spot.rank)
      outputs[0] = rolled_cols(context, outputs[0], 1, d);
  };
  return planted;
}

std::optional<Planted> keys_as_values(const Program&, const Spot& spot) {
  return change_inputs(spot.place, {spot.rank},
                       [](RankContext&, const Instruction&, std::vector<Tensor>& inputs) {
                         std::swap(inputs[1], inputs[2]);
                       });
}

Tensor rotated(RankContext& context, const Instruction& i, const Tensor& x, bool rolled,
               RopeConvention convention) {
  auto [cos, sin] = context.rope_table(context.rows_of(i.outputs[0]));
  if (rolled) {
    cos = rolled_rows(context, cos, 1);
    sin = rolled_rows(context, sin, 1);
  }
  const Tensor out = context.allocate(i.outputs[0]);
  context.device().rope(context.stream(), x, cos, sin, context.program().config.head_dim,
                        convention, out);
  return out;
}

/// Rows are rotated by the positions of the rows after them.
std::optional<Planted> positions_rolled(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{rotated(context, i, inputs[0], true, RopeConvention::half_split)};
      });
}

std::optional<Planted> other_convention(const Program&, const Spot& spot) {
  return execute_instead(
      spot.place, {spot.rank},
      [](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        return std::vector<Tensor>{rotated(context, i, inputs[0], false, RopeConvention::interleaved)};
      });
}

/// From the first decode step on, positions are counted from one too far.
std::optional<Planted> position_off_in_decode(const Program& program, const Spot& spot) {
  const RopeConfig rope = program.config.rope;
  if (rope.type != RopeConfig::Type::standard) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [theta = rope.theta](RankContext& context, const Instruction& i,
                           const std::vector<Tensor>& inputs) {
        if (context.step().phase != Phase::decode) return run_plainly(context, i, inputs);
        const std::int64_t d = context.program().config.head_dim, half = d / 2;
        const auto [cos, sin] = context.rope_table(context.rows_of(i.outputs[0]));
        std::vector<double> cosines, sines;
        for (const Range& range : context.rows_of(i.outputs[0])) {
          for (std::int64_t row = range.begin; row < range.end; ++row) {
            const auto position = static_cast<double>(
                context.positions()[static_cast<std::size_t>(row)] + 1);
            for (std::int64_t pair = 0; pair < half; ++pair) {
              const double angle = position / std::pow(theta, 2.0 * static_cast<double>(pair) /
                                                                  static_cast<double>(d));
              cosines.push_back(std::cos(angle));
              sines.push_back(std::sin(angle));
            }
          }
        }
        const Tensor c = zeros_like(context, cos), s = zeros_like(context, sin);
        context.device().upload(context.stream(), round_to(c.dtype, {c.rows, c.cols}, cosines), c);
        context.device().upload(context.stream(), round_to(s.dtype, {s.rows, s.cols}, sines), s);
        const Tensor out = context.allocate(i.outputs[0]);
        context.device().rope(context.stream(), inputs[0], c, s, d, RopeConvention::half_split, out);
        return std::vector<Tensor>{out};
      });
}

std::optional<Planted> attend_with(const Spot& spot, std::string attribute,
                                   std::function<double(double)> change) {
  return execute_instead(
      spot.place, {spot.rank},
      [attribute = std::move(attribute), change = std::move(change)](
          RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        Instruction other = i;
        other.attributes[attribute] = change(i.attributes.at(attribute));
        return run_plainly(context, other, inputs);
      });
}

/// Queries are told a later position than theirs, and see a key more.
std::optional<Planted> future_key_seen(const Program& program, const Spot& spot) {
  const Instruction& site = *at_site(program, spot.phase, spot.place);
  if (site.attributes.at("window") > 0.0) return std::nullopt;
  const Layout &q = program.value(site.inputs[0]).layout, &k = program.value(site.inputs[1]).layout;
  if (!q.row_axes.empty()) return std::nullopt;
  const std::int64_t d = program.config.head_dim;
  const std::int64_t group = program.config.num_heads / program.config.num_kv_heads;
  std::vector<std::int32_t> map;
  for (const Range& range : q.feature_ranges(spot.rank)) {
    for (std::int64_t at = range.begin; at < range.end; at += d) {
      const std::int64_t kv = at / d / group;
      const Ranges local = locate(k.feature_ranges(spot.rank), {{kv * d, (kv + 1) * d}});
      if (local.size() != 1) return std::nullopt;
      map.push_back(static_cast<std::int32_t>(local[0].begin / d));
    }
  }
  if (map.empty()) return std::nullopt;
  return execute_instead(
      spot.place, {spot.rank},
      [map, d](RankContext& context, const Instruction& i, const std::vector<Tensor>& inputs) {
        Device& device = context.device();
        const DType dtype = accumulate_dtype(context.settings().storage);
        const auto heads = static_cast<std::int64_t>(map.size());
        const Tensor out = context.allocate(i.outputs[0]);
        std::int64_t row = 0, key = 0;
        for (const StepSequence& sequence : context.step().sequences) {
          const std::int64_t count = sequence.count, seen = sequence.first + count;
          const AttentionState state{device.allocate(context.stream(), dtype, count, heads),
                                     device.allocate(context.stream(), dtype, count, heads),
                                     device.allocate(context.stream(), dtype, count, heads * d)};
          const AttentionShape shape{d, i.attributes.at("scale"), sequence.first + 1, 0, 0};
          device.attention_partial(context.stream(), inputs[0].row_range(row, row + count),
                                   inputs[1].row_range(key, key + seen),
                                   inputs[2].row_range(key, key + seen), map, shape, state);
          device.attention_finish(context.stream(), state, d, out.row_range(row, row + count));
          row += count;
          key += seen;
        }
        return std::vector<Tensor>{out};
      });
}

}  // namespace

std::vector<Fault> caches_and_positions() {
  std::vector<Fault> all;
  const auto of = [](std::string_view op) {
    return [op](const Program& p, Phase phase) { return ops(p, phase, op); };
  };
  all.push_back({.name = "stale_key",
                 .kind = 'O',
                 .source = "sgl-project/sglang #31968",
                 .what = "one rank's new key doesn't reach its cache",
                 .layer = FaultLayer::execution,
                 .cause = "shard_stale",
                 .phase = Phase::decode,
                 .places = of("cache"),
                 .plant = [](const Program& p, const Spot& s) { return stale_entry(p, s, 0); }});
  all.push_back({.name = "stale_value",
                 .kind = 'O',
                 .source = "sgl-project/sglang #33497",
                 .what = "one rank's new value doesn't reach its cache",
                 .layer = FaultLayer::execution,
                 .cause = "shard_stale",
                 .phase = Phase::decode,
                 .places = of("cache"),
                 .plant = [](const Program& p, const Spot& s) { return stale_entry(p, s, 1); }});
  all.push_back({.name = "cached_rows_rolled",
                 .kind = 'O',
                 .source = "vllm-project/tpu-inference #1847",
                 .what = "one rank reads its cached values from the rows of other positions",
                 .layer = FaultLayer::execution,
                 .cause = "permuted_rows|shard_stale",
                 .places = of("cache"),
                 .plant = entries_rolled});
  all.push_back({.name = "cached_heads_rolled",
                 .kind = 'O',
                 .source = "GenerelSchwerz/llama.cpp #48",
                 .what = "one rank reads its cached keys of other heads",
                 .layer = FaultLayer::execution,
                 .cause = "permuted_heads|kv_head_of_neighbour",
                 .places = of("cache"),
                 .plant = cached_heads_rolled});
  all.push_back(
      {.name = "keys_taken_for_values",
       .kind = 'O',
       .source = "sgl-project/sglang #27740",
       .what = "one rank's attention reads keys where values are and values where keys are",
       .layer = FaultLayer::execution,
       .cause = "operands_exchanged",
       .places = of("attention"),
       .plant = keys_as_values});
  all.push_back({.name = "positions_of_other_rows",
                 .kind = 'O',
                 .source = "NVIDIA/Megatron-LM #453",
                 .what = "one rank rotates rows by the positions of the rows after them",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_positions",
                 .places = of("rope"),
                 .plant = positions_rolled});
  all.push_back({.name = "position_off_in_decode",
                 .kind = 'O',
                 .source = "NVIDIA-NeMo/Automodel #1482",
                 .what = "from the first decode step on one rank counts positions from one too far",
                 .layer = FaultLayer::arithmetic,
                 .cause = "wrong_positions",
                 .phase = Phase::decode,
                 .places = of("rope"),
                 .plant = position_off_in_decode});
  all.push_back({.name = "other_rope_convention",
                 .kind = 'O',
                 .source = "allenai/OLMo-core CHANGELOG (RoPE buffers)",
                 .what = "one rank rotates pairs of neighbours, where the model rotates halves",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_convention",
                 .places = of("rope"),
                 .plant = other_convention});
  all.push_back({.name = "window_where_there_is_none",
                 .kind = 'O',
                 .source = "huggingface/accelerate #4177",
                 .what = "one rank's attention hides keys further back than two positions",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_mask",
                 .places = of("attention"),
                 .plant = [](const Program&, const Spot& s) {
                   return attend_with(s, "window", [](double) { return 2.0; });
                 }});
  all.push_back({.name = "future_key_seen",
                 .kind = 'O',
                 .source = "pytorch/pytorch #152261",
                 .what = "one rank's queries see a key more than their position allows",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_mask",
                 .places = of("attention"),
                 .plant = future_key_seen});
  all.push_back({.name = "scores_scaled_by_other_width",
                 .kind = 'O',
                 .source = "turboderp-org/exllamav2 #728; InternLM/lmdeploy #2761",
                 .what = "one rank scales scores by another head_dim",
                 .layer = FaultLayer::execution,
                 .cause = "wrong_scale",
                 .places = of("attention"),
                 .plant = [](const Program&, const Spot& s) {
                   return attend_with(s, "scale", [](double scale) { return scale / std::sqrt(2.0); });
                 }});
  return all;
}

}  // namespace shardcheck::faults
