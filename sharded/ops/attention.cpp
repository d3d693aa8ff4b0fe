// SPDX-License-Identifier: Apache-2.0
// Causal attention over the cache, head by head: partial -> finish, so that splitting the keys is the same primitives.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "model/error.hpp"
#include "sharded/head_map.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// out = softmax(scale q k^T, causal, window) v per head.     q [M, h_r * d]   k, v [keys, kv_r * d]   out [M, h_r * d]
/// q R or S(features) cut between heads; every rank must hold the kv heads of its q heads, the same of k and of v.
/// Sequences may be cut, those of q, k and v alike: a rank attends to its own. S(tokens) is refused. out is placed like
/// q. No communication.
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
        } else if (met.cuts_rows() && differs_from_another(query, i)) {
          refuse("placements_differ", "attention needs q, k and v of the same sequences");
        } else if (met.cuts_features() && !on_boundaries(query.inputs[input], query.mesh, head_dim)) {
          placed.violations.push_back(
              head_is_cut(query, static_cast<int>(input), static_cast<int>(i), head_dim,
                          {cut_by_heads(query.inputs[0], query.config, query.mesh, static_cast<int>(i))}));
        }
      }
    }
    if (!placed.violations.empty()) return placed;
    for (int input = 1; input < 3; ++input) {
      const Layout& layout = query.inputs[static_cast<std::size_t>(input)];
      if (layout.row_axes == query.inputs[0].row_axes) continue;
      Layout assumed = layout;
      assumed.row_axes = query.inputs[0].row_axes;
      placed.violations.push_back({"ranges_differ", input, layout.row_axes[0],
                                   query.inputs[0].placements[0], assumed,
                                   "attention needs q, k and v of the same sequences", ""});
      return placed;
    }
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
        placed.violations.back().fix = kRecut;
        return placed;
      }
    }
    if (auto apart = keys_and_values_differ(query, head_dim)) {
      placed.violations.push_back(std::move(*apart));
      return placed;
    }
    placed.outputs = {query.inputs[0]};
    return placed;
  }

  Cost cost(const Instruction& instruction, const RankContext& context,
            const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) const override {
    const auto window = static_cast<std::int64_t>(instruction.attributes.at("window"));
    std::int64_t pairs = 0;
    for (const StepSequence& sequence : own_sequences(instruction, context)) {
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
    for (const StepSequence& sequence : own_sequences(instruction, context)) {
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

 private:
  /// A rank's keys and values lie in one cache, and one map says which of its heads serves a q head.
  static std::optional<PlacementViolation> keys_and_values_differ(const PlaceQuery& query, std::int64_t head_dim) {
    constexpr const char* kSentence = "a rank keeps the keys and the values of the same kv heads";
    const Layout &k = query.inputs[1], &v = query.inputs[2];
    bool alike = true;
    for (int rank = 0; rank < query.mesh.ranks(); ++rank)
      alike = alike && heads_of(k, rank, head_dim) == heads_of(v, rank, head_dim);
    if (alike) return std::nullopt;
    int cut = 0;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      if (v.placements[i].cuts_features()) cut = axis;
      if (k.placements[i] == v.placements[i]) continue;
      // One is whole: its weight is cut too, or the other gathered.
      const int whole = k.placements[i].cuts_features() ? 2 : 1;
      PlacementViolation apart = requires_replicated(query, 3 - whole, axis, "placements_differ", kSentence);
      apart.others.push_back({whole, Placement::sharded(Dim::features), {query.inputs[0]}, std::string(kRecut)});
      apart.preferred = 1;
      return apart;
    }
    return PlacementViolation{"ranges_differ", 2, cut, k.placements[static_cast<std::size_t>(cut)], k, kSentence,
                              std::string(kRecut)};
  }
  static bool differs_from_another(const PlaceQuery& query, std::size_t axis) {
    return std::any_of(query.inputs.begin(), query.inputs.end(), [&](const Layout& layout) {
      return !(layout.placements[axis] == query.inputs[0].placements[axis]);
    });
  }
  /// The step's sequences that this rank attends to.
  static std::vector<StepSequence> own_sequences(const Instruction& instruction,
                                                 const RankContext& context) {
    const Program& program = context.program();
    const Layout& q = program.value(instruction.inputs[0]).layout;
    std::vector<StepSequence> own = context.step().sequences;
    std::erase_if(own, [&](const StepSequence& part) {
      return !q.holds_sequence(program.mesh, context.rank(), part.sequence);
    });
    return own;
  }
};

}  // namespace

std::unique_ptr<const Op> make_attention() { return std::make_unique<Attention>(); }

}  // namespace shardcheck::ops
