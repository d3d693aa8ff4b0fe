// SPDX-License-Identifier: Apache-2.0
// Causal attention over the cache, head by head: partial -> finish, so that splitting the keys is the same primitives.
#include <fmt/format.h>

#include <algorithm>

#include "model/error.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Heads of a rank in local order: its feature ranges in units of one head.
std::vector<std::int64_t> heads_of(const Layout& layout, int rank, std::int64_t head_dim) {
  std::vector<std::int64_t> heads;
  for (const Range& range : layout.feature_ranges(rank)) {
    for (std::int64_t at = range.begin; at < range.end; at += head_dim)
      heads.push_back(at / head_dim);
  }
  return heads;
}

/// Local kv head of each local q head; -1 where the rank doesn't hold it.
std::vector<std::int32_t> head_map(const Layout& q, const Layout& k, int rank,
                                   const Attributes& attributes) {
  const auto head_dim = static_cast<std::int64_t>(attributes.at("head_dim"));
  const auto group = static_cast<std::int64_t>(attributes.at("num_heads") /
                                               attributes.at("num_kv_heads"));
  const std::vector<std::int64_t> kv_heads = heads_of(k, rank, head_dim);
  std::vector<std::int32_t> map;
  for (const std::int64_t head : heads_of(q, rank, head_dim)) {
    const auto found = std::find(kv_heads.begin(), kv_heads.end(), head / group);
    map.push_back(found == kv_heads.end() ? -1 : static_cast<std::int32_t>(found - kv_heads.begin()));
  }
  return map;
}

/// out = softmax(scale q k^T, causal, window) v per head.     q [M, h_r * d]   k, v [keys, kv_r * d]   out [M, h_r * d]
/// q R or S(features) cut between heads; every rank must hold the kv heads of its q heads. out is placed like q.
/// No communication.
class Attention final : public Op {
 public:
  std::string_view name() const override { return "attention"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    const auto head_dim = static_cast<std::int64_t>(query.node.attributes.at("head_dim"));
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      for (std::size_t input = 0; input < query.inputs.size(); ++input) {
        const Placement& met = query.inputs[input].placements[i];
        const auto refuse = [&](std::string rule, std::string sentence) {
          placed.violations.push_back(requires_replicated(query, static_cast<int>(input),
                                                          static_cast<int>(i), std::move(rule),
                                                          std::move(sentence)));
        };
        if (met.is_partial()) {
          refuse("partial_into_nonlinear", "attention takes whole values, not partial sums");
        } else if (met == Placement::sharded(Dim::tokens)) {
          refuse("tokens_into_attention", "attention needs every token of the step");
        } else if (met == Placement::sharded(Dim::features) &&
                   !on_boundaries(query.inputs[input], query.mesh, head_dim)) {
          refuse("head_is_cut",
                 fmt::format("a rank's range ends inside a head of {} features; cut by head", head_dim));
        }
      }
    }
    if (!placed.violations.empty()) return placed;
    for (int rank = 0; rank < query.mesh.ranks(); ++rank) {
      for (std::size_t input = 1; input < 3; ++input) {
        const std::vector<std::int32_t> map = head_map(query.inputs[0], query.inputs[input], rank,
                                                       query.node.attributes);
        if (std::find(map.begin(), map.end(), -1) == map.end()) continue;
        const auto wrong = static_cast<std::size_t>(std::find(map.begin(), map.end(), -1) -
                                                    map.begin());
        const std::int64_t head = heads_of(query.inputs[0], rank, head_dim)[wrong];
        int axis = 0;
        for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
          if (query.inputs[input].placements[i].kind == Placement::Kind::S)
            axis = static_cast<int>(i);
        }
        placed.violations.push_back(requires_replicated(
            query, static_cast<int>(input), axis, "kv_head_missing",
            fmt::format(
                "rank {} has q head {} but not the kv head that serves it; cut k and v by kv_head",
                rank, head)));
        return placed;
      }
    }
    placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    const auto window = static_cast<std::int64_t>(instruction.attributes.at("window"));
    std::int64_t pairs = 0;
    for (const StepSequence& sequence : context.step().sequences) {
      for (std::int64_t i = 0; i < sequence.count; ++i) {
        pairs += visible_keys({sequence.sequence, sequence.first + i, 1}, window).size();
      }
    }
    return {4 * pairs * inputs[0].cols, operand_bytes(inputs, outputs)};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    Device& device = context.device();
    Stream& stream = context.stream();
    const Program& program = context.program();
    const Attributes& attributes = instruction.attributes;
    const auto head_dim = static_cast<std::int64_t>(attributes.at("head_dim"));
    const auto window = static_cast<std::int64_t>(attributes.at("window"));
    const std::vector<std::int32_t> map = head_map(program.value(instruction.inputs[0]).layout,
                                                   program.value(instruction.inputs[1]).layout,
                                                   context.rank(), attributes);
    if (std::find(map.begin(), map.end(), -1) != map.end()) {
      throw ShapeError(fmt::format("{}: rank {} lacks a kv head of its q heads", instruction.site,
                                   context.rank()));
    }
    Tensor out = context.allocate(instruction.outputs[0]);
    const auto heads = static_cast<std::int64_t>(map.size());
    const DType accumulate = accumulate_dtype(context.settings().storage);
    std::int64_t row = 0, key = 0;
    for (const StepSequence& sequence : context.step().sequences) {
      const Range seen = visible_keys(sequence, window);
      const std::int64_t end = row + sequence.count;
      const AttentionState state{device.allocate(stream, accumulate, sequence.count, heads),
                                 device.allocate(stream, accumulate, sequence.count, heads),
                                 device.allocate(stream, accumulate, sequence.count, heads * head_dim)};
      const AttentionShape shape{head_dim, attributes.at("scale"), sequence.first, seen.begin, window};
      device.attention_partial(stream, inputs[0].row_range(row, end),
                               inputs[1].row_range(key, key + seen.size()),
                               inputs[2].row_range(key, key + seen.size()), map, shape, state);
      device.attention_finish(stream, state, head_dim, out.row_range(row, end));
      row = end;
      key += seen.size();
    }
    return {out};
  }
};

}  // namespace

std::unique_ptr<const Op> make_attention() { return std::make_unique<Attention>(); }

}  // namespace shardcheck::ops
