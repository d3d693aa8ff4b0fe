// SPDX-License-Identifier: Apache-2.0
// One section of a fused value: q, k or v of a c_attn output.
#include <algorithm>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Features [begin, end) of the whole value; each rank takes what it has of them. A view that moves nothing where
/// that is one stretch of its columns, as with every cut by rows or heads; else a copy.
class Split final : public Op {
 public:
  std::string_view name() const override { return "split"; }

  std::vector<std::int64_t> shapes(const Node& node, const Config&, const Module*,
                                   const std::vector<std::int64_t>&) const override {
    const Range section = section_of(node.attributes);
    return {section.size()};
  }

  Placed place(const PlaceQuery& query) const override {
    const Range section = section_of(query.node.attributes);
    Layout out = query.inputs[0];
    out.features = section.size();
    for (Ranges& ranges : out.owned) {
      Ranges inside;
      for (const Range& range : ranges) {
        const std::int64_t begin = std::max(range.begin, section.begin);
        const std::int64_t end = std::min(range.end, section.end);
        if (begin < end) inside.push_back({begin - section.begin, end - section.begin});
      }
      ranges = inside;
    }
    return {{out}, {}};
  }

  Cost cost(const Instruction& instruction, const RankContext& context, const std::vector<Extent>&,
            const std::vector<Extent>& outputs) const override {
    return {0, local_part(instruction, context).size() > 1 ? 2 * outputs[0].bytes() : 0};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Ranges local = local_part(instruction, context);
    if (local.empty()) return {inputs[0].col_range(0, 0)};
    if (local.size() == 1) return {inputs[0].col_range(local[0].begin, local[0].end)};
    Tensor out = context.allocate(instruction.outputs[0]);
    std::int64_t at = 0;
    for (const Range& range : local) {
      context.device().copy(context.stream(), inputs[0].col_range(range.begin, range.end),
                            out.col_range(at, at + range.size()));
      at += range.size();
    }
    return {out};
  }

 private:
  /// Where this rank's part of the section lies among its columns: one stretch, unless explicit ranges mix sections.
  static Ranges local_part(const Instruction& instruction, const RankContext& context) {
    const Layout& whole = context.program().value(instruction.inputs[0]).layout;
    return locate(whole.feature_ranges(context.rank()), {section_of(instruction.attributes)});
  }
  static Range section_of(const Attributes& attributes) {
    return {static_cast<std::int64_t>(attributes.at("begin")),
            static_cast<std::int64_t>(attributes.at("end"))};
  }
};

}  // namespace

std::unique_ptr<const Op> make_split() { return std::make_unique<Split>(); }

}  // namespace shardcheck::ops
