// SPDX-License-Identifier: Apache-2.0
#include "docs/examples/ring_attention.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "sharded/head_map.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/rank_context.hpp"

namespace ring {
namespace {

using shardcheck::AttentionShape;
using shardcheck::AttentionState;
using shardcheck::Layout;
using shardcheck::Mesh;
using shardcheck::Placement;
using shardcheck::Range;
using shardcheck::Step;
using shardcheck::StepSequence;
using shardcheck::Tensor;

constexpr auto kCutTokens = [](const Placement& placement) {
  return placement == Placement::sharded(shardcheck::Dim::tokens);
};

/// The mesh axes along which a value's tokens are cut: the ring.
std::vector<int> ring_axes(const Layout& layout) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (kCutTokens(layout.placements[axis])) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

/// Consecutive positions of one sequence, and the local rows that hold them.
struct Stretch {
  std::int64_t part;      // which of the step's sequences
  std::int64_t position;  // of the first row
  Range rows;
};

/// Queries of this step that a rank has.
std::vector<Stretch> queries(const Layout& q, const Mesh& mesh, int rank, const Step& step) {
  std::vector<Stretch> all;
  const shardcheck::Ranges mine = q.row_ranges(mesh, rank, step);
  std::int64_t first = 0, row = 0;
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const StepSequence& part = step.sequences[i];
    for (const Range& held : intersection(mine, {{first, first + part.count}})) {
      all.push_back(
          {static_cast<std::int64_t>(i), part.first + held.begin - first, {row, row + held.size()}});
      row += held.size();
    }
    first += part.count;
  }
  return all;
}

/// Keys that a rank hands round: what it has kept of the positions that some query of the step may see.
std::vector<Stretch> keys(const Layout& k, const Mesh& mesh, int rank,
                          std::span<const Step* const> steps, std::int64_t window) {
  std::vector<Stretch> all;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < steps.back()->sequences.size(); ++i) {
    const StepSequence& part = steps.back()->sequences[i];
    const shardcheck::Ranges kept = k.kept_positions(mesh, rank, steps, part.sequence);
    for (const Range& seen : intersection(kept, {visible_keys(part, window)})) {
      all.push_back({static_cast<std::int64_t>(i), seen.begin, {row, row + seen.size()}});
      row += seen.size();
    }
  }
  return all;
}

std::int64_t rows_of(const std::vector<Stretch>& stretches) {
  return stretches.empty() ? 0 : stretches.back().rows.end;
}

/// out = softmax(scale q k^T, causal, window) v per head, on a ring of P ranks.
///                                       q, out [M_r, h_r d] S(tokens)   k_cache, v_cache [keys that the rank keeps, kv_r d]
/// P - 1 rounds of two messages, k and v, of at most the largest rank's keys. On axes that don't cut tokens it asks for
/// what the built-in attention asks for.
/// Source: Liu et al. 2023, Ring Attention with Blockwise Transformers (arXiv 2310.01889).
class RingAttention final : public shardcheck::Op {
 public:
  std::string_view name() const override { return "ring_attention"; }

  std::vector<std::int64_t> shapes(const shardcheck::Node&, const shardcheck::Config&,
                                   const shardcheck::Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return {inputs[0]};
  }

  shardcheck::Placed place(const shardcheck::PlaceQuery& query) const override {
    const Layout& q = query.inputs[0];
    const std::vector<int> ring = ring_axes(q);
    for (int input = 1; input < 3; ++input) {
      const Layout& other = query.inputs[static_cast<std::size_t>(input)];
      if (ring_axes(other) == ring) continue;
      Layout assumed = other;
      for (std::size_t axis = 0; axis < q.placements.size(); ++axis) {
        if (kCutTokens(q.placements[axis]) || kCutTokens(other.placements[axis]))
          assumed.placements[axis] = q.placements[axis];
      }
      assumed.row_axes = q.row_axes;
      const int axis = ring.empty() ? ring_axes(other).front() : ring.front();
      return {{},
              {{"ring_needs_cut_keys", input, axis, q.placements[static_cast<std::size_t>(axis)],
                assumed, "ring attention needs the tokens of q, k and v cut alike", ""}}};
    }
    // Along the other axes it is attention.
    shardcheck::PlaceQuery whole = query;
    for (Layout& layout : whole.inputs) {
      for (const int axis : ring) {
        layout.placements[static_cast<std::size_t>(axis)] = Placement::replicated();
        std::erase(layout.row_axes, axis);
      }
    }
    shardcheck::Placed placed = attention_->place(whole);
    const auto cut_again = [&](Layout& layout) {
      for (const int axis : ring)
        layout.placements[static_cast<std::size_t>(axis)] = q.placements[static_cast<std::size_t>(axis)];
      layout.row_axes = q.row_axes;
    };
    for (Layout& out : placed.outputs) cut_again(out);
    for (shardcheck::PlacementViolation& violation : placed.violations)
      cut_again(violation.assumed);
    return placed;
  }

  shardcheck::Cost cost(const shardcheck::Instruction& instruction,
                        const shardcheck::RankContext& context,
                        const std::vector<shardcheck::Extent>& inputs,
                        const std::vector<shardcheck::Extent>& outputs) const override {
    const shardcheck::Program& program = context.program();
    const auto window = static_cast<std::int64_t>(instruction.attributes.at("window"));
    std::int64_t pairs = 0;
    for (const Stretch& q : queries(program.value(instruction.inputs[0]).layout, program.mesh,
                                    context.rank(), context.step())) {
      for (std::int64_t i = 0; i < q.rows.size(); ++i)
        pairs += shardcheck::visible_keys({q.part, q.position + i, 1}, window).size();
    }
    return {4 * pairs * inputs[0].cols,
            inputs[0].bytes() + inputs[1].bytes() + inputs[2].bytes() + outputs[0].bytes()};
  }

  std::vector<Tensor> run(const shardcheck::Instruction& instruction, shardcheck::RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const shardcheck::Program& program = context.program();
    const Layout& q = program.value(instruction.inputs[0]).layout;
    const Layout& k = program.value(instruction.inputs[1]).layout;
    const std::vector<int> axes = ring_axes(q);
    const std::vector<int> members = program.mesh.group(context.rank(), axes);
    const auto size = static_cast<int>(members.size());
    const auto me = static_cast<int>(std::find(members.begin(), members.end(), context.rank()) -
                                     members.begin());
    const Work work{instruction, context, inputs[0],
                    head_map(q, k, context.rank(), instruction.attributes)};
    const std::vector<Stretch> mine = queries(q, program.mesh, context.rank(), context.step());
    std::vector<AttentionState> states;
    for (const Stretch& stretch : mine) {
      states.push_back(work.state(stretch));
      work.attend(stretch, {stretch.part, 0, {0, 0}}, inputs[1], inputs[2], states.back());  // no key yet
    }
    std::pair<Tensor, Tensor> block{inputs[1], inputs[2]};
    for (int round = 0; round < size; ++round) {
      const int owner = (me - round + size) % size;  // whose keys have come here
      const std::vector<Stretch> theirs = block_of(instruction, context,
                                                   members[static_cast<std::size_t>(owner)]);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        for (const Stretch& stretch : theirs) {
          if (stretch.part != mine[i].part) continue;
          const AttentionState seen = work.state(mine[i]);
          work.attend(mine[i], stretch, block.first, block.second, seen);
          context.device().attention_merge(context.stream(), seen, states[i]);
        }
      }
      if (round + 1 < size) {
        const int next_owner = (owner - 1 + size) % size;
        block = pass_on(
            instruction, context, axes, block,
            rows_of(block_of(instruction, context, members[static_cast<std::size_t>(next_owner)])));
      }
    }
    Tensor out = context.allocate(instruction.outputs[0]);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      context.device().attention_finish(context.stream(), states[i], work.head_dim(),
                                        out.row_range(mine[i].rows.begin, mine[i].rows.end));
    }
    return {out};
  }

 private:
  /// What all blocks have in common.
  struct Work {
    const shardcheck::Instruction& instruction;
    shardcheck::RankContext& context;
    Tensor q;
    std::vector<std::int32_t> heads;

    double attribute(std::string_view name) const {
      return instruction.attributes.find(name)->second;
    }
    std::int64_t head_dim() const { return static_cast<std::int64_t>(attribute("head_dim")); }

    AttentionState state(const Stretch& queries) const {
      const shardcheck::DType dtype = shardcheck::accumulate_dtype(context.settings().storage);
      const auto count = static_cast<std::int64_t>(heads.size());
      const auto make = [&](std::int64_t cols) {
        return context.device().allocate(context.stream(), dtype, queries.rows.size(), cols);
      };
      return {make(count), make(count), make(count * head_dim())};
    }
    void attend(const Stretch& queries, const Stretch& keys, const Tensor& k, const Tensor& v,
                const AttentionState& out) const {
      const AttentionShape shape{head_dim(), attribute("scale"), queries.position, keys.position,
                                 static_cast<std::int64_t>(attribute("window"))};
      context.device().attention_partial(
          context.stream(), q.row_range(queries.rows.begin, queries.rows.end),
          k.row_range(keys.rows.begin, keys.rows.end), v.row_range(keys.rows.begin, keys.rows.end),
          heads, shape, out);
    }
  };

  static std::vector<Stretch> block_of(const shardcheck::Instruction& instruction,
                                       const shardcheck::RankContext& context, int rank) {
    const shardcheck::Program& program = context.program();
    return keys(program.value(instruction.inputs[1]).layout, program.mesh, rank, context.steps(),
                static_cast<std::int64_t>(instruction.attributes.at("window")));
  }

  /// Sends the block to the next rank and takes the previous one's. A send waits for its receiver, so ranks of even
  /// number send first: in a ring of odd length the last of them is freed by the first.
  static std::pair<Tensor, Tensor> pass_on(const shardcheck::Instruction& instruction,
                                           shardcheck::RankContext& context,
                                           const std::vector<int>& axes,
                                           const std::pair<Tensor, Tensor>& block, std::int64_t rows) {
    shardcheck::Communicator& ring = context.communicator(axes);
    const int next = (ring.rank() + 1) % ring.size();
    const int previous = (ring.rank() - 1 + ring.size()) % ring.size();
    const shardcheck::CallSite site{instruction.site, context.step().phase, context.step().index};
    const auto room = [&](const Tensor& like) {
      return context.device().allocate(context.stream(), like.dtype, rows, like.cols);
    };
    std::pair<Tensor, Tensor> received{room(block.first), room(block.second)};
    const auto send = [&] {
      ring.send(context.stream(), block.first, next, site);
      ring.send(context.stream(), block.second, next, site);
    };
    const bool sends_first = ring.rank() % 2 == 0;
    if (sends_first) send();
    ring.recv(context.stream(), received.first, previous, site);
    ring.recv(context.stream(), received.second, previous, site);
    if (!sends_first) send();
    return received;
  }

  std::unique_ptr<const shardcheck::Op> attention_ = shardcheck::ops::make_attention();
};

/// Keys that a rank has kept of what the last step's queries see. Stated for the plans of this folder, whose tokens are cut
/// over the first axis alone, without the program's help: the audit compares what ran with this.
std::int64_t kept_keys(std::span<const Step> steps, std::int64_t window, std::int64_t size,
                       std::int64_t at) {
  std::int64_t count = 0;
  for (const StepSequence& part : steps.back().sequences) {
    const Range seen = visible_keys(part, window);
    for (const Step& step : steps) {
      std::int64_t row = 0;
      const std::int64_t each = step.tokens() / size, extra = step.tokens() % size;
      const std::int64_t begin = at * each + std::min(at, extra);
      const Range mine{begin, begin + each + (at < extra ? 1 : 0)};
      for (const StepSequence& earlier : step.sequences) {
        for (std::int64_t i = 0; i < earlier.count; ++i, ++row) {
          const std::int64_t position = earlier.first + i;
          count += earlier.sequence == part.sequence && row >= mine.begin && row < mine.end &&
                           position >= seen.begin && position < seen.end
                       ? 1
                       : 0;
        }
      }
    }
  }
  return count;
}

/// P - 1 rounds. In round i rank r passes on the block of rank r - i and takes that of rank r - i - 1; ranks of even number
/// send first.
std::vector<shardcheck::ExpectedCollective> messages(const shardcheck::ExchangeQuery& query) {
  const shardcheck::Mesh::Axis& ring = query.plan.mesh.axes.front();
  const int me = query.plan.mesh.coordinates(query.rank).front();
  const std::string layer = query.value.substr(0, query.value.rfind('.'));  // "layers.0.self_attn"
  const shardcheck::Module& k = query.model.module(layer + ".k_proj");
  const std::int64_t window = query.model.config().windows[static_cast<std::size_t>(k.layer)].value_or(
      0);
  const std::int64_t row_bytes = total(query.plan.rows_of(k, query.rank)) *
                                 static_cast<std::int64_t>(element_size(query.settings.storage));
  std::vector<shardcheck::ExpectedCollective> all;
  const auto twice = [&](const char* what, int owner) {  // k, v
    const std::int64_t bytes = kept_keys(query.steps, window, ring.size,
                                         (owner % ring.size + ring.size) % ring.size) *
                               row_bytes;
    const bool receives = std::string_view(what) == "recv";  // and puts in nothing of its own
    for (int message = 0; message < 2; ++message)
      all.push_back({query.value, what, ring.name, query.settings.storage, bytes, receives ? 0 : bytes});
  };
  for (int round = 0; round + 1 < ring.size; ++round) {
    if (me % 2 == 0) twice("send", me - round);
    twice("recv", me - round - 1);
    if (me % 2 != 0) twice("send", me - round);
  }
  return all;
}

}  // namespace

std::unique_ptr<const shardcheck::Op> make_ring_attention() {
  return std::make_unique<RingAttention>();
}

shardcheck::VerifyParts parts_with_ring_attention() {
  shardcheck::VerifyParts parts = shardcheck::builtin_parts();
  parts.ops.add(make_ring_attention());
  // On whole tensors it is attention, with attention's error budget.
  parts.local_ops.add("ring_attention", *parts.local_ops.find("attention"));
  parts.exchanges["ring_attention"] = messages;
  return parts;
}

}  // namespace ring
