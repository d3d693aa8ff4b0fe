// SPDX-License-Identifier: Apache-2.0
// Embedding: rows of a table picked by token id or by position.
#include <fmt/format.h>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// out[m] = table[ids[m]].                                  ids R       table [V, D]            out [M, D]
/// Table R: out R. Table cut by vocab: ids that a rank doesn't own give zero rows, out is P(sum) and an all_reduce of
/// M D wire bytes follows. Table cut by features: out S(features), no communication.
/// Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3.
class Embedding final : public Op {
 public:
  std::string_view name() const override { return "embedding"; }

  std::vector<std::int64_t> shapes(const Node&, const Config&, const Module* module,
                                   const std::vector<std::int64_t>&) const override {
    return {module->in};
  }

  Placed place(const PlaceQuery& query) const override {
    Layout out = Layout::replicated(query.module->in, query.mesh);
    for (const ModulePlacement::AxisCut& cut : query.weight->cuts) {
      out.placements[static_cast<std::size_t>(cut.axis)] = cut.rows
                                                               ? Placement::partial()
                                                               : Placement::sharded(Dim::features);
    }
    out.owned = query.weight->cols;
    return {{out}, {}};
  }

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>& inputs,
            const std::vector<Extent>& outputs) const override {
    // The rows that are picked are read once; which of them this rank owns depends on ids, so all are counted.
    return {0, operand_bytes(inputs, outputs) + outputs[0].bytes()};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Module& module = *context.program().find_module(instruction.module);
    std::vector<std::pair<std::int64_t, std::int64_t>> owned;
    for (const Range& range : context.program().plan.rows_of(module, context.rank())) {
      owned.emplace_back(range.begin, range.end);
    }
    Tensor out = context.allocate(instruction.outputs[0]);
    context.device().embedding(context.stream(), inputs[0], context.weight(module.weight()), owned,
                               out);
    return {out};
  }
};

}  // namespace

std::unique_ptr<const Op> make_embedding() { return std::make_unique<Embedding>(); }

}  // namespace shardcheck::ops
