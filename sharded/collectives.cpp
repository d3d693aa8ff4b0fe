// SPDX-License-Identifier: Apache-2.0
#include "sharded/collectives.hpp"

#include <fmt/format.h>

#include "model/error.hpp"
#include "sharded/step_rules.hpp"

namespace shardcheck {
namespace {

/// Communicators know rows and columns; rows are their `tokens`.
Dim tensor_dim(PlanDim dim) {
  return activation_dim(dim) == Dim::features ? Dim::features : Dim::tokens;
}

Ranges ranges_of(const Layout& layout, const RankContext& context, int rank, Dim dim) {
  return dim == Dim::features
             ? layout.feature_ranges(rank)
             : layout.row_ranges(context.program().mesh, rank, context.step());
}

/// Where each member of the group has its part of `dim`, in local indices of the rank that holds `whole`.
Partition parts(const Layout& whole, const Layout& cut, const RankContext& context,
                const std::vector<int>& axes, Dim dim) {
  const Ranges outer = ranges_of(whole, context, context.rank(), dim);
  std::vector<Ranges> per_rank;
  for (const int member : context.program().mesh.group(context.rank(), axes)) {
    per_rank.push_back(locate(outer, ranges_of(cut, context, member, dim)));
  }
  return {total(outer), std::move(per_rank)};
}

Tensor slice(RankContext& context, const Tensor& input, Dim dim, const Ranges& wanted,
             const Tensor& out) {
  if (wanted.size() == 1) return range_of(input, dim, wanted[0]);
  std::int64_t at = 0;
  for (const Range& range : wanted) {
    context.device().copy(context.stream(), range_of(input, dim, range),
                          range_of(out, dim, {at, at + range.size()}));
    at += range.size();
  }
  return out;
}

/// A reduction takes contiguous tensors, and a slice of columns is a view.
Tensor dense(RankContext& context, const Tensor& input) {
  if (input.contiguous()) return input;
  const Tensor copy = context.device().allocate(context.stream(), input.dtype, input.rows, input.cols);
  context.device().copy(context.stream(), input, copy);
  return copy;
}

/// In a program that breaks a rule a value is assumed as its readers take it, which may be what the plan's step doesn't
/// make of its input: a forced run ends there. Throws ShapeError.
void check_result(const Instruction& instruction, const Program& program) {
  const Layout& before = program.value(instruction.inputs[0]).layout;
  const Layout& after = program.value(instruction.outputs[0]).layout;
  const StepPlaced placed = place_step(instruction.collective, instruction.axes, before, program.mesh,
                                       program.config.head_dim);
  const bool fits = placed.out.row_axes == after.row_axes && placed.out.owned.empty() == after.owned.empty();
  if (!placed.misfits.empty() || fits) return;
  throw ShapeError(fmt::format("{}: {} makes it {}, but what reads it takes it as {}", instruction.site,
                               to_string(instruction.collective), to_string(placed.out, program.mesh),
                               to_string(after, program.mesh)));
}

}  // namespace

Tensor run_collective(const Instruction& instruction, RankContext& context, const Tensor& input) {
  using Kind = CollectiveStep::Kind;
  const CollectiveStep& step = instruction.collective;
  const Layout& before = context.program().value(instruction.inputs[0]).layout;
  const Layout& after = context.program().value(instruction.outputs[0]).layout;
  const CallSite site{instruction.site, context.step().phase, context.step().index};
  const Dim dim = tensor_dim(step.dim);
  if (context.program().forced_shapes) check_result(instruction, context.program());
  const Tensor out = context.allocate(instruction.outputs[0]);
  Communicator& group = context.communicator(instruction.axes);
  ReduceSpec spec = context.settings().reduction;
  spec.op = step.op;
  // What travels is the input's dtype; a wider or narrower output is one more rounding, after the collective.
  const Tensor received = input.dtype == out.dtype
                              ? out
                              : context.device().allocate(context.stream(), input.dtype, out.rows,
                                                          out.cols);
  switch (step.kind) {
    case Kind::all_reduce:
      group.all_reduce(context.stream(), dense(context, input), spec, received, site);
      break;
    case Kind::reduce_scatter:
      group.reduce_scatter(context.stream(), dense(context, input), dim,
                           parts(before, after, context, instruction.axes, dim), spec, received, site);
      break;
    case Kind::all_gather:
      group.all_gather(context.stream(), input, dim,
                       parts(after, before, context, instruction.axes, dim), received, site);
      break;
    case Kind::all_to_all: {
      const Dim concat = tensor_dim(step.concat);
      group.all_to_all(context.stream(), input, dim,
                       parts(before, after, context, instruction.axes, dim), concat,
                       parts(after, before, context, instruction.axes, concat), received, site);
      break;
    }
    case Kind::broadcast:
      group.broadcast(context.stream(), input, step.root, received, site);
      break;
    case Kind::slice: {
      const Ranges mine = ranges_of(after, context, context.rank(), dim);
      return slice(context, input, dim,
                   locate(ranges_of(before, context, context.rank(), dim), mine), out);
    }
  }
  if (received.dtype != out.dtype) context.device().cast(context.stream(), received, out);
  return out;
}

}  // namespace shardcheck
