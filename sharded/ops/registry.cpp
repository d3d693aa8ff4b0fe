// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "model/error.hpp"
#include "sharded/ops/ops.hpp"
#include "sharded/rank_context.hpp"

namespace shardcheck {

void Registry::add(std::unique_ptr<const Op> op) {
  std::string name(op->name());
  ops_[std::move(name)] = std::move(op);
}

const Op& Registry::find(std::string_view name) const {
  const auto found = ops_.find(name);
  if (found == ops_.end()) {
    throw InputError(fmt::format("no op is called \"{}\"; did you mean \"{}\"?", name,
                                 nearest_name(name, names())));
  }
  return *found->second;
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> result;
  for (const auto& [name, op] : ops_) result.push_back(name);
  return result;
}

Registry builtin_ops() {
  Registry registry;
  registry.add(ops::make_embedding());
  registry.add(ops::make_linear());
  registry.add(ops::make_bias());
  registry.add(ops::make_rms_norm());
  registry.add(ops::make_head_norm());
  registry.add(ops::make_layer_norm());
  registry.add(ops::make_rms_statistic());
  registry.add(ops::make_rms_apply());
  registry.add(ops::make_rope());
  registry.add(ops::make_split());
  registry.add(ops::make_cache());
  registry.add(ops::make_attention());
  registry.add(ops::make_gate());
  registry.add(ops::make_unary());
  registry.add(ops::make_add());
  registry.add(ops::make_add_rms_norm());
  return registry;
}

namespace ops {

std::int64_t operand_bytes(const std::vector<Extent>& inputs, const std::vector<Extent>& outputs) {
  std::int64_t bytes = 0;
  for (const Extent& extent : inputs) bytes += extent.bytes();
  for (const Extent& extent : outputs) bytes += extent.bytes();
  return bytes;
}

std::int64_t weight_bytes(const Instruction& instruction, const RankContext& context) {
  const auto size = static_cast<std::int64_t>(element_size(context.settings().storage));
  const ModulePlacement& at = context.program().plan.placement(instruction.module);
  const auto rank = static_cast<std::size_t>(context.rank());
  const Module& module = *context.program().find_module(instruction.module);
  const std::int64_t rows = at.rows.empty() ? module.out : total(at.rows[rank]);
  const std::int64_t cols = at.cols.empty() ? module.in : total(at.cols[rank]);
  return (rows * cols + (instruction.adds_bias ? rows : 0)) * size;
}

}  // namespace ops
}  // namespace shardcheck
