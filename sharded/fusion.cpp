// SPDX-License-Identifier: Apache-2.0
#include "sharded/fusion.hpp"

#include <algorithm>

namespace shardcheck {
namespace {

bool is(const Instruction& instruction, std::string_view op) {
  return instruction.op != nullptr && instruction.op->name() == op && instruction.op->fusible();
}

/// Every rank holds whole rows of a value in the storage dtype.
bool has_whole_rows(const Value& value) {
  const std::vector<Placement>& placements = value.layout.placements;
  return value.dtype == ValueDType::storage && value.rows == ValueRows::tokens &&
         value.layout.owned.empty() &&
         std::all_of(placements.begin(), placements.end(), [](const Placement& placement) {
           return placement.kind == Placement::Kind::R || placement.cuts_rows();
         });
}

bool fits_together(const Program& program, const Instruction& add, const Instruction& norm) {
  if (!is(add, "add") || !is(norm, "rms_norm") || norm.inputs != add.outputs) return false;
  const ModulePlacement& weight = program.plan.placement(norm.module);
  if (!weight.rows.empty() || !weight.cols.empty()) return false;
  // Under --force a value may be taken for what it is not: then its source is placed otherwise.
  const Value& sum = program.value(add.outputs[0]);
  const auto placed_alike = [&](int value) { return program.value(value).layout == sum.layout; };
  return has_whole_rows(sum) && std::all_of(add.inputs.begin(), add.inputs.end(), placed_alike) &&
         placed_alike(norm.outputs[0]);
}

Instruction fused(const Instruction& add, const Instruction& norm, const Op& op) {
  Instruction both = norm;
  both.op = &op;
  both.site = add.site;
  both.inputs = add.inputs;
  both.outputs = {add.outputs[0], norm.outputs[0]};
  both.parts = {add, norm};
  return both;
}

}  // namespace

Program fuse(const Program& program, const Registry& ops) {
  const Op& op = ops.find(kAddRmsNorm);
  Program result = program;
  for (auto& [phase, instructions] : result.instructions) {
    std::vector<Instruction> list;
    for (Instruction& instruction : instructions) {
      if (!list.empty() && fits_together(program, list.back(), instruction)) {
        list.back() = fused(list.back(), instruction, op);
      } else {
        list.push_back(std::move(instruction));
      }
    }
    instructions = std::move(list);
  }
  return result;
}

int fused_instructions(const Program& program, Phase phase) {
  const std::vector<Instruction>& instructions = program.instructions.at(phase);
  return static_cast<int>(
      std::count_if(instructions.begin(), instructions.end(),
                    [](const Instruction& instruction) { return !instruction.parts.empty(); }));
}

std::vector<const Instruction*> unfused(const Program& program, Phase phase) {
  std::vector<const Instruction*> all;
  for (const Instruction& instruction : program.instructions.at(phase)) {
    if (instruction.parts.empty()) all.push_back(&instruction);
    for (const Instruction& part : instruction.parts) all.push_back(&part);
  }
  return all;
}

}  // namespace shardcheck
