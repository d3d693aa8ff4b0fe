// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "harness/judge_collective.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

// The value that the program makes of `value` by collectives and a bias alone; nothing if another op comes first.
std::optional<int> next_value(const Work& work, int value) {
  const Phase phase = work.run->steps[work.steps.front()].step.phase;
  for (const Instruction& instruction : work.program->instructions.at(phase)) {
    if (instruction.inputs.empty() || instruction.inputs[0] != value) continue;
    if (instruction.op == nullptr || instruction.op->name() == "bias")
      return instruction.outputs[0];
  }
  return std::nullopt;
}

std::vector<int> partial_axes(const Layout& layout) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (layout.placements[axis].is_partial()) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

// The shares of the weight's columns whose products a rank's output is the sum of.
std::vector<Ranges> column_parts(const Work& work, const OutputSet& outputs, const TapReader& input,
                                 int rank, const Module& module) {
  const Program& program = *work.program;
  const Layout& planned = program.value(work.instruction->outputs[0]).layout;
  std::vector<Ranges> parts;
  const auto add = [&parts](const Ranges& columns) {
    const Ranges part = normalized(columns);
    if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
  };
  const bool shows_partial = outputs.reader(0).layout().any_partial();
  if (planned.any_partial() && shows_partial) {
    add(program.plan.cols_of(module, rank));
  } else if (planned.any_partial()) {
    // The partials themselves aren't shown: their sum is.
    for (const int member : program.mesh.group(rank, partial_axes(planned)))
      add(program.plan.cols_of(module, member));
  } else if (program.mesh.ranks() == 1 && work.run->mesh.ranks() > 1 && !input.layout().owned.empty()) {
    // A candidate of unknown plan: ranks that hold parts of the input must have summed over them.
    for (const int peer : input.seen_by(rank)) add(input.layout().feature_ranges(peer));
  } else {
    add({{0, module.in}});
  }
  return parts;
}

ProductBudget budget_of(const Work& work, const OutputSet& outputs, const std::vector<Ranges>& parts,
                        const Module& module, const Arithmetic& arithmetic) {
  const TapRun& run = *work.run;
  const DType out = outputs.reader(0).dtype();
  std::int64_t terms = work.instruction->adds_bias ? 1 : 0;
  for (const Ranges& part : parts) terms += total(part);
  ProductBudget budget = product_budget(out, terms, arithmetic);
  if (parts.size() > 1) {
    // Each part is rounded to the wire dtype, then reduced; a bias after that adds one more rounding of the sum.
    const ReductionBudget reduction = reduction_budget(
        run.reduction, static_cast<int>(parts.size()), run.wire, out);
    budget.per_result = std::max(budget.per_result, reduction.per_result);
    budget.per_partial = std::hypot(unit_roundoff(run.wire), reduction.per_terms);
    if (module.has_bias) budget.per_partial += unit_roundoff(out);
    budget.constant += reduction.constant;
  }
  return budget;
}

}  // namespace

OutputSet product_outputs(const Work& work, bool taps_may_be_missing) {
  OutputSet own(work, taps_may_be_missing);
  if (!own.empty() || !taps_may_be_missing) return own;
  for (std::optional<int> value = next_value(work, work.instruction->outputs[0]); value;
       value = next_value(work, *value)) {
    OutputSet later(work, work.program->value(*value));
    if (!later.empty()) return later;
  }
  return own;
}

std::vector<ProductRequest> product_requests(const Work& work, OutputSet& outputs,
                                             const Arithmetic& arithmetic, bool taps_may_be_missing) {
  std::vector<ProductRequest> requests;
  if (outputs.empty()) return requests;
  const TapReader input(*work.run, work.steps, work.program->value(work.instruction->inputs[0]));
  if (!input.present()) {
    if (!taps_may_be_missing)
      outputs.fail_all(fmt::format("its input {} is missing", input.name()), false);
    return requests;
  }
  const Module& module = *work.program->find_module(work.instruction->module);
  if (input.layout().features != module.in || outputs.reader(0).layout().features != module.out) {
    outputs.fail_all(
        fmt::format("its input {} has {} features and it has {}, the weight is [{}, {}]",
                    input.name(), input.layout().features, outputs.reader(0).layout().features,
                    module.out, module.in),
        false);
    return requests;
  }

  struct Readers {
    std::vector<int> peers, ranks;
    std::vector<Ranges> parts;
  };
  using Key = std::pair<std::vector<const void*>, std::vector<std::int64_t>>;
  std::map<Key, Readers> readers;
  for (int rank = 0; rank < work.run->mesh.ranks(); ++rank) {
    const std::vector<int> peers = input.seen_by(rank);
    std::string defect;
    for (const int peer : peers) {
      if (defect.empty()) defect = input.defect(peer);
    }
    if (!defect.empty()) {
      outputs.fail(rank, fmt::format("its input {} {}", input.name(), defect));
      continue;
    }
    const std::vector<Ranges> parts = column_parts(work, outputs, input, rank, module);
    Key key{input.key(peers), {}};
    for (const Ranges& part : parts) {
      for (const Range& range : part) key.second.insert(key.second.end(), {range.begin, range.end});
      key.second.push_back(-1);
    }
    Readers& known = readers.emplace(std::move(key), Readers{peers, {}, parts}).first->second;
    known.ranks.push_back(rank);
  }
  const bool own = outputs.reader(0).name() == work.program->value(work.instruction->outputs[0]).name;
  for (const auto& [key, reader] : readers) {
    ProductRequest request{input, reader.peers, reader.parts,
                           false, {},           outputs.comparisons(0, reader.ranks, false)};
    // The bias is in the linear's own output only if it was added there; a later value that is the module's has it.
    const bool complete = outputs.reader(0).name() == module.path;
    request.adds_bias = work.instruction->adds_bias || (!own && complete && module.has_bias);
    if (outputs.reader(0).layout().may_overlap) {
      for (std::size_t i = 0; i < request.outputs.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) request.outputs[i].add_twin(request.outputs[j].rank());
      }
    }
    request.budget = budget_of(work, outputs, reader.parts, module, arithmetic);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace shardcheck
