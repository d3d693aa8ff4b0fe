// SPDX-License-Identifier: Apache-2.0
#include "harness/diagnose/failed_op.hpp"

#include <algorithm>
#include <cmath>

#include "harness/judge_requests.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

const Work* work_with_output(const std::vector<Work>& works, const Program& program,
                             const Failure& failure) {
  const Work* found = nullptr;
  for (const Work& work : works) {
    for (const int output : work.instruction->outputs) {
      if (program.value(output).name != failure.tap) continue;
      const bool in_phase = std::any_of(work.steps.begin(), work.steps.end(), [&](std::size_t s) {
        return failure.run->steps[s].step.phase == failure.phase;
      });
      if (found == nullptr || in_phase) found = &work;
    }
  }
  return found;
}

}  // namespace

FailedOp::FailedOp(const Model& model, const Failure& failure, const DiagnoseOptions& options)
    : failure_(failure),
      options_(options),
      builtin_(builtin_local_ops()),
      weights_(model, failure.run->storage),
      works_(work_of(*failure.program, *failure.run)) {
  work_ = work_with_output(works_, program(), failure);
  if (work_ == nullptr) return;
  const auto read_inputs = [this](const std::vector<std::size_t>& steps) {
    inputs_.clear();
    for (const int input : work_->inputs)
      inputs_.emplace_back(run(), steps, program().value(input));
  };
  read_inputs(work_->steps);
  const bool missing = std::any_of(inputs_.begin(), inputs_.end(),
                                   [](const TapReader& in) { return !in.present(); });
  if (missing && options.taps_may_be_missing) {
    // A product that doesn't show its own output is judged at the first value after it that is shown.
    for (const Work& other : works_) {
      if (other.instruction->op == nullptr || other.instruction->op->name() != "linear") continue;
      const OutputSet shown = product_outputs(other, true);
      if (shown.empty() || shown.reader(0).name() != failure.tap) continue;
      work_ = &other;
      read_inputs(work_->steps);
      output_ = shown.reader(0);
    }
  }
  const LocalOps& ops = options.ops != nullptr ? *options.ops : builtin_;
  if (instruction().op != nullptr) local_ = ops.find(instruction().op->name());
  if (local_ != nullptr && local_->reads_history) read_inputs(work_->history());
  if (local_ != nullptr && local_->product) local_ = nullptr;
  module_ = program().find_module(instruction().module);
  if (output_) return;
  for (std::size_t i = 0; i < instruction().outputs.size(); ++i) {
    const Value& value = program().value(instruction().outputs[i]);
    if (value.name != failure.tap) continue;
    output_index_ = static_cast<int>(i);
    output_.emplace(run(), work_->steps, value);
  }
}

std::string_view FailedOp::op() const {
  return instruction().op == nullptr ? std::string_view{} : instruction().op->name();
}

Arithmetic FailedOp::arithmetic(Primitive primitive) const {
  if (options_.arithmetic) return options_.arithmetic(primitive, run().storage);
  Arithmetic plain;
  plain.accumulate = accumulate_dtype(run().storage);
  return plain;
}

bool FailedOp::rounds_once() const { return local_ != nullptr && local_->rounds_once; }

std::optional<F64Matrix> FailedOp::value(std::string_view tap,
                                         const std::vector<std::size_t>& steps, int rank) const {
  for (const Work& other : works_) {
    for (const int output : other.instruction->outputs) {
      if (program().value(output).name != tap) continue;
      const TapReader reader(run(), steps, program().value(output));
      if (!reader.present()) continue;
      const std::vector<int> peers = reader.seen_by(rank);
      const bool whole = std::all_of(peers.begin(), peers.end(),
                                     [&](int peer) { return reader.defect(peer).empty(); });
      if (whole) return reader.assemble(peers);
    }
  }
  return std::nullopt;
}

}  // namespace shardcheck
