// SPDX-License-Identifier: Apache-2.0
// One section of a fused value: q, k or v of a c_attn output.
#include <algorithm>

#include "sharded/ops/ops.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck::ops {
namespace {

/// Features [begin, end) of the whole value; each rank takes what it has of them, as a view: nothing is moved.
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

  Cost cost(const Instruction&, const RankContext&, const std::vector<Extent>&,
            const std::vector<Extent>&) const override {
    return {};
  }

  std::vector<Tensor> run(const Instruction& instruction, RankContext& context,
                          const std::vector<Tensor>& inputs) const override {
    const Range section = section_of(instruction.attributes);
    const Ranges whole =
        context.program().value(instruction.inputs[0]).layout.feature_ranges(context.rank());
    std::int64_t begin = 0, at = 0;
    const std::int64_t size = context.extent(instruction.outputs[0]).cols;
    bool found = false;
    for (const Range& range :
         whole) {  // sections are stored one after the other, so a section's part is one run
      if (!found && range.end > section.begin && range.begin < section.end) {
        begin = at + std::max<std::int64_t>(0, section.begin - range.begin);
        found = true;
      }
      at += range.size();
    }
    return {inputs[0].col_range(begin, begin + size)};
  }

 private:
  static Range section_of(const Attributes& attributes) {
    return {static_cast<std::int64_t>(attributes.at("begin")),
            static_cast<std::int64_t>(attributes.at("end"))};
  }
};

}  // namespace

std::unique_ptr<const Op> make_split() { return std::make_unique<Split>(); }

}  // namespace shardcheck::ops
