// SPDX-License-Identifier: Apache-2.0
// KV cache: appends this step's keys and values, and hands out what attention may read.
#include <array>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Appends k and v [M, kv_r * d] to the rank's cache and returns, per sequence of the step in order, the rows of the
/// positions that some query of the step may see and that the rank keeps.      k_cache, v_cache [sum of kept, kv_r * d]
/// Each rank keeps the kv heads, sequences or tokens that it computed: R and every S pass unchanged, nothing is
/// communicated; k and v must hold the same rows. P is refused.
class Cache final : public Op {
 public:
  std::string_view name() const override { return "cache"; }
  ValueRows rows() const override { return ValueRows::cache; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module*,
                                   const std::vector<std::int64_t>& inputs) const override {
    return inputs;
  }

  Placed place(const PlaceQuery& query) const override {
    Placed placed;
    const std::vector<Layout>& in = query.inputs;
    for (std::size_t i = 0; i < query.mesh.axes.size(); ++i) {
      const auto axis = static_cast<int>(i);
      for (int input = 0; input < 2; ++input) {
        if (in[static_cast<std::size_t>(input)].placements[i].is_partial()) {
          placed.violations.push_back(
              requires_replicated(query, input, axis, "partial_into_nonlinear",
                                  "the cache keeps whole keys and values, not partial sums"));
        }
      }
      const Placement &k = in[0].placements[i], &v = in[1].placements[i];
      if (placed.violations.empty() && (k.cuts_rows() || v.cuts_rows()) && !(k == v)) {
        placed.violations.push_back(
            requires_replicated(query, k.cuts_rows() ? 0 : 1, axis, "placements_differ",
                                "a rank keeps the keys and the values of the same tokens"));
      }
    }
    if (!placed.violations.empty()) return placed;
    if (in[0].row_axes != in[1].row_axes) {
      Layout assumed = in[1];
      assumed.row_axes = in[0].row_axes;
      placed.violations.push_back({"ranges_differ", 1, in[1].row_axes[0], in[0].placements[0], assumed,
                                   "a rank keeps the keys and the values of the same tokens", ""});
      return placed;
    }
    placed.outputs = in;
    return placed;
  }

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>&) const override {
    // Written once; attention reads the cache in place.
    return {0, 2 * (inputs[0].bytes() + inputs[1].bytes())};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Program& program = context.program();
    const Layout& layout = program.value(instruction.inputs[0]).layout;
    const Step& step = context.step();
    const Ranges rows = layout.row_ranges(program.mesh, context.rank(), step);
    std::int64_t first_row = 0, local = 0;
    for (const StepSequence& part : step.sequences) {
      for (const Range& held : intersection(rows, {{first_row, first_row + part.count}})) {
        const std::int64_t position = part.first + held.begin - first_row;
        append(context, instruction, part.sequence, position,
               {inputs[0].row_range(local, local + held.size()),
                inputs[1].row_range(local, local + held.size())});
        local += held.size();
      }
      first_row += part.count;
    }
    return kept(context, instruction, inputs[0].cols);
  }

 private:
  static void append(RankContext& context, const Instruction& instruction, std::int64_t sequence,
                     std::int64_t position, const std::array<Tensor, 2>& rows) {
    SequenceCache& cache = context.cache(instruction.module, sequence, rows[0].cols);
    const std::int64_t end = position + rows[0].rows;
    context.device().copy(context.stream(), rows[0], cache.k.row_range(position, end));
    context.device().copy(context.stream(), rows[1], cache.v.row_range(position, end));
  }

  /// One stretch: a view of the cache itself. Several: one after the other.
  static std::vector<Tensor> kept(RankContext& context, const Instruction& instruction,
                                  std::int64_t kv_features) {
    const Program& program = context.program();
    const Layout& layout = program.value(instruction.inputs[0]).layout;
    const auto window = static_cast<std::int64_t>(instruction.attributes.at("window"));
    struct Stretch {
      std::int64_t sequence;
      Range positions;
    };
    std::vector<Stretch> stretches;
    for (const StepSequence& part : context.step().sequences) {
      const Ranges positions = layout.kept_positions(program.mesh, context.rank(), context.steps(),
                                                     part.sequence);
      for (const Range& seen : intersection(positions, {visible_keys(part, window)}))
        stretches.push_back({part.sequence, seen});
    }
    const bool one = stretches.size() == 1;
    Tensor keys = one ? Tensor{} : context.allocate(instruction.outputs[0]);
    Tensor values = one ? Tensor{} : context.allocate(instruction.outputs[1]);
    std::int64_t row = 0;
    for (const auto& [sequence, seen] : stretches) {
      const SequenceCache& cache = context.cache(instruction.module, sequence, kv_features);
      const Tensor k = cache.k.row_range(seen.begin, seen.end);
      const Tensor v = cache.v.row_range(seen.begin, seen.end);
      if (one) return {k, v};
      context.device().copy(context.stream(), k, keys.row_range(row, row + seen.size()));
      context.device().copy(context.stream(), v, values.row_range(row, row + seen.size()));
      row += seen.size();
    }
    return {keys, values};
  }
};

}  // namespace

std::unique_ptr<const Op> make_cache() { return std::make_unique<Cache>(); }

}  // namespace shardcheck::ops
