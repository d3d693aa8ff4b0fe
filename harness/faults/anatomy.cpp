// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/anatomy.hpp"

#include <algorithm>

#include "sharded/collectives.hpp"
#include "sharded/op.hpp"

namespace shardcheck::faults {
namespace {

const std::vector<Instruction>& code(const Program& program, Phase phase) {
  return program.instructions.at(phase);
}

bool cut(const Program& program, const Module& module, bool rows) {
  const ModulePlacement& placement = program.plan.placement(module.path);
  return std::any_of(placement.cuts.begin(), placement.cuts.end(),
                     [&](const ModulePlacement::AxisCut& c) { return c.rows == rows; });
}

}  // namespace

std::vector<std::string> sites(const Program& program, Phase phase, const Where& where) {
  std::vector<std::string> found;
  for (const Instruction& instruction : code(program, phase)) {
    if (where(program, instruction)) found.push_back(instruction.site);
  }
  return found;
}

std::vector<std::string> module_paths(const Program& program,
                                      const std::function<bool(const Program&, const Module&)>& where) {
  std::vector<std::string> found;
  for (const Module& module : program.modules) {
    if (where(program, module)) found.push_back(module.path);
  }
  return found;
}

bool is_op(const Instruction& instruction, std::string_view op) {
  return instruction.op != nullptr && instruction.op->name() == op;
}

bool is_norm(const Instruction& instruction) {
  return is_op(instruction, "rms_norm") || is_op(instruction, "layer_norm");
}

bool is_collective(const Instruction& instruction, CollectiveStep::Kind kind) {
  return instruction.op == nullptr && instruction.collective.kind == kind;
}

bool sums(const Instruction& instruction) {
  return (is_collective(instruction, CollectiveStep::Kind::all_reduce) ||
          is_collective(instruction, CollectiveStep::Kind::reduce_scatter)) &&
         instruction.collective.op == ReduceOp::sum;
}

const Instruction* at_site(const Program& program, Phase phase, std::string_view site) {
  for (const Instruction& instruction : code(program, phase)) {
    if (instruction.site == site) return &instruction;
  }
  return nullptr;
}

const Instruction* producer(const Program& program, Phase phase, int value) {
  for (const Instruction& instruction : code(program, phase)) {
    const std::vector<int>& outputs = instruction.outputs;
    if (std::find(outputs.begin(), outputs.end(), value) != outputs.end()) return &instruction;
  }
  return nullptr;
}

std::vector<const Instruction*> readers(const Program& program, Phase phase, int value) {
  std::vector<const Instruction*> found;
  for (const Instruction& instruction : code(program, phase)) {
    const std::vector<int>& inputs = instruction.inputs;
    if (std::find(inputs.begin(), inputs.end(), value) != inputs.end())
      found.push_back(&instruction);
  }
  return found;
}

const Module* module_of(const Program& program, const Instruction& instruction) {
  return program.find_module(instruction.module);
}

bool makes_partial(const Program& program, const Instruction& instruction) {
  return (is_op(instruction, "linear") || is_op(instruction, "embedding")) &&
         program.value(instruction.outputs[0]).layout.any_partial() &&
         std::none_of(instruction.inputs.begin(), instruction.inputs.end(),
                      [&](int input) { return program.value(input).layout.any_partial(); });
}

const Instruction* sum_of(const Program& program, Phase phase, const Instruction& instruction) {
  for (const Instruction* reader : readers(program, phase, instruction.outputs[0])) {
    if (sums(*reader)) return reader;
  }
  return nullptr;
}

bool cut_by_rows(const Program& program, const Module& module) {
  return cut(program, module, true);
}
bool cut_by_columns(const Program& program, const Module& module) {
  return cut(program, module, false);
}

Ranges rows_of(const Program& program, const Module& module, int rank) {
  return program.plan.rows_of(module, rank);
}
Ranges cols_of(const Program& program, const Module& module, int rank) {
  return program.plan.cols_of(module, rank);
}

std::string site_of(const Program& program, Phase phase, const Module& module) {
  for (const Instruction& instruction : code(program, phase)) {
    if (instruction.op != nullptr && instruction.module == module.path &&
        !is_op(instruction, "rms_statistic"))
      return instruction.site;
  }
  return module.path;
}

std::string after_steps(const Program& program, Phase phase, const std::string& module) {
  for (const Instruction& instruction : code(program, phase)) {
    if (instruction.op == nullptr && instruction.module == module && !instruction.site.ends_with(".in"))
      return program.value(instruction.outputs[0]).name;
  }
  return module;
}

std::vector<int> everyone(const Program& program) {
  return ranks_where(program, [](int) { return true; });
}

std::vector<int> ranks_where(const Program& program, const std::function<bool(int)>& where) {
  std::vector<int> ranks;
  for (int rank = 0; rank < program.mesh.ranks(); ++rank) {
    if (where(rank)) ranks.push_back(rank);
  }
  return ranks;
}

int neighbour(const Program& program, int rank, int by) {
  std::vector<int> at = program.mesh.coordinates(rank);
  for (std::size_t axis = 0; axis < at.size(); ++axis) {
    const int size = program.mesh.axes[axis].size;
    if (size == 1) continue;
    at[axis] = ((at[axis] + by) % size + size) % size;
    break;
  }
  return program.mesh.rank_at(at);
}

bool holds(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<Tensor> run_plainly(RankContext& context, const Instruction& instruction,
                                const std::vector<Tensor>& inputs) {
  if (instruction.op == nullptr) return {run_collective(instruction, context, inputs[0])};
  return instruction.op->run(instruction, context, inputs);
}

Planted change_output(const std::string& site, std::vector<int> ranks, Edit edit) {
  Planted planted;
  planted.first = {site, ranks};
  planted.after = [site, ranks = std::move(ranks), edit = std::move(edit)](
                      RankContext& context, const Instruction& instruction,
                      std::vector<Tensor>& outputs) {
    if (instruction.site == site && holds(ranks, context.rank()))
      edit(context, instruction, outputs);
  };
  return planted;
}

Planted execute_instead(const std::string& site, std::vector<int> ranks, Execute execute) {
  Planted planted;
  planted.first = {site, ranks};
  planted.replace = [site, ranks = std::move(ranks), execute = std::move(execute)](
                        RankContext& context, const Instruction& instruction,
                        const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
    if (instruction.site != site || !holds(ranks, context.rank())) return false;
    outputs = execute(context, instruction, inputs);
    return true;
  };
  return planted;
}

Planted change_inputs(const std::string& site, std::vector<int> ranks, Inputs change) {
  return execute_instead(
      site, std::move(ranks),
      [change = std::move(change)](RankContext& context, const Instruction& instruction,
                                   const std::vector<Tensor>& inputs) {
        std::vector<Tensor> other = inputs;
        change(context, instruction, other);
        return run_plainly(context, instruction, other);
      });
}

}  // namespace shardcheck::faults
