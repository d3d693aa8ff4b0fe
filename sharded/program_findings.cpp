// SPDX-License-Identifier: Apache-2.0
#include "sharded/program_findings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

bool is_about_ranges(const std::string& rule) {
  return rule == "ranges_differ" || rule == "head_is_cut" || rule == "kv_head_missing";
}

}  // namespace

std::string any_layer(const std::string& path) {
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const bool number = end > begin &&
                        std::all_of(path.begin() + static_cast<std::ptrdiff_t>(begin),
                                    path.begin() + static_cast<std::ptrdiff_t>(end),
                                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (number) return path.substr(0, begin) + "*" + path.substr(end);
    begin = end + 1;
  }
  return path;
}

ProgramFindings::ProgramFindings(Program& program, const PartitionCheck& partitions,
                                 const RepairChoices& choices)
    : program_(program), partitions_(partitions), choices_(choices) {
  for (const Finding& finding : partitions.findings) add(finding);
  if (!partitions.findings.empty()) program_.forced_shapes = true;
  for (const auto& [phase, points] : program_.plan.points) {
    for (const auto& [point, steps] : points) {
      for (const CollectiveStep& step : steps) {
        const bool has_dim = step.kind != CollectiveStep::Kind::all_reduce &&
                             step.kind != CollectiveStep::Kind::broadcast;
        cuts_rows_ = cuts_rows_ || (has_dim && activation_dim(step.dim) != Dim::features);
      }
    }
  }
}

std::size_t ProgramFindings::choose(const std::string& key, std::size_t options, std::size_t preferred) {
  if (known_.insert("site " + key).second) sites_.push_back({key, options});
  const auto chosen = choices_.find(key);
  return chosen == choices_.end() || chosen->second >= options ? preferred : chosen->second;
}

std::vector<Layout> ProgramFindings::refuse(const Node& node,
                                            const std::vector<PlacementViolation>& violations,
                                            const std::vector<int>& inputs, const Module* consumer,
                                            Phase phase) {
  const PlacementViolation& first = violations[0];
  std::size_t choice = 0;
  const bool same = std::all_of(violations.begin(), violations.end(), [&](const PlacementViolation& v) {
    return v.rule == first.rule && v.others.size() == first.others.size();
  });
  if (same && !first.others.empty()) {
    const std::string key = fmt::format("{} {} {} {}", first.rule, node.op,
                                        any_layer(node.outputs[0]), first.axis);
    choice = choose(key, first.others.size() + 1, first.preferred);
  }
  const bool broken_weight = consumer != nullptr && partitions_.broken.contains(consumer->path);
  const bool ranges_known = broken_weight ||
                            std::any_of(inputs.begin(), inputs.end(),
                                        [this](int input) { return is_broken(input); });
  for (const PlacementViolation& violation : violations) {
    const PlacementRepair* repair = choice == 0 ? nullptr : &violation.others[choice - 1];
    const int input = inputs[static_cast<std::size_t>(repair != nullptr ? repair->input : violation.input)];
    const Placement& required = repair != nullptr ? repair->required : violation.required;
    const std::string& fix = repair != nullptr ? repair->fix : violation.fix;
    const auto axis = static_cast<std::size_t>(violation.axis);
    const Placement met = value(input).layout.placements[axis];
    if (!ranges_known || !is_about_ranges(violation.rule)) {
      // What one weight's cut does to its sections, or to keys and values, has that weight as its one cause.
      const Module* maker = is_about_ranges(violation.rule) && violation.rule != "ranges_differ"
                                ? maker_of(input, phase)
                                : nullptr;
      add({violation.rule, node.op, value(input).name, program_.mesh.axes[axis].name,
           to_string(met), to_string(required),
           fix_text(fix, input, required, violation.axis, consumer, phase), violation.sentence},
          maker == nullptr ? "" : maker->path);
    }
    if (!met.is_partial() || repair != nullptr || required.kind == Placement::Kind::S)
      program_.forced_shapes = true;
    if (repair == nullptr) value(input).layout = violation.assumed;
  }
  return choice == 0 ? std::vector<Layout>{} : first.others[choice - 1].outputs;
}

Layout ProgramFindings::fitting(const Layout& out, const std::vector<CollectiveStep>& steps,
                                std::size_t at, const std::string& point, const std::string& tap,
                                int input) {
  using Kind = CollectiveStep::Kind;
  const CollectiveStep& step = steps[at];
  const bool scatters = step.kind == Kind::reduce_scatter || step.kind == Kind::slice;
  const bool to_rows = scatters && activation_dim(step.dim) != Dim::features;
  const bool to_whole = cuts_rows_ && step.kind == Kind::all_reduce && step.axes.size() == 1;
  if (!to_rows && !to_whole) return out;
  if (choose(fmt::format("rows {} {} {}", any_layer(point), at, to_string(step)), 2, 0) == 0)
    return out;
  const int axis = program_.mesh.axis_index(step.axes[0]);
  const Placement before = value(input).layout.placements[static_cast<std::size_t>(axis)];
  Layout other = out;
  std::vector<CollectiveStep> repaired = steps;
  if (to_rows) {
    for (const std::string& name : step.axes)
      other = assume_replicated(std::move(other), program_.mesh, program_.mesh.axis_index(name));
    if (step.kind == Kind::slice) {
      repaired.erase(repaired.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      repaired[at].kind = Kind::all_reduce;
      repaired[at].dim = CollectiveStep{}.dim;
    }
  } else {
    other.placements[static_cast<std::size_t>(axis)] = Placement::sharded(Dim::tokens);
    other.row_axes.push_back(axis);
    repaired[at] = *step_between(before, Placement::sharded(Dim::tokens), step.axes[0]);
  }
  add({"tokens_differ", to_string(step), tap, step.axes[0],
       to_string(out.placements[static_cast<std::size_t>(axis)]),
       to_string(other.placements[static_cast<std::size_t>(axis)]), point_entry(point, repaired),
       to_rows ? "after this step ranks hold different tokens, and what reads it takes all of them"
               : "after this step every rank holds all tokens, and what reads it takes the rank's "
                 "own"});
  program_.forced_shapes = true;
  return other;
}

Layout ProgramFindings::misplaced(const StepPlaced& placed, const std::vector<CollectiveStep>& steps,
                                  std::size_t at, const std::string& point, int input) {
  const CollectiveStep& step = steps[at];
  const std::string key = fmt::format("{} {} {}", any_layer(point), at, to_string(step));
  const bool left_out = choose(key, 2, 0) == 1;
  std::vector<CollectiveStep> repaired = steps;
  if (placed.instead && !left_out) {
    repaired[at] = *placed.instead;
  } else {
    repaired.erase(repaired.begin() + static_cast<std::ptrdiff_t>(at));
  }
  for (const StepMisfit& misfit : placed.misfits) {
    const auto axis = static_cast<std::size_t>(misfit.axis);
    const Placement met = value(input).layout.placements[axis];
    add({"collective_misplaced", to_string(step), value(input).name, program_.mesh.axes[axis].name,
         to_string(met), to_string(misfit.required), point_entry(point, repaired), misfit.sentence});
    if (step.kind != CollectiveStep::Kind::all_reduce || met.kind == Placement::Kind::S)
      program_.forced_shapes = true;
  }
  if (left_out) program_.forced_shapes = true;
  return left_out ? value(input).layout : placed.out;
}

void ProgramFindings::add(Finding finding, const std::string& cause) {
  // Both phases meet the same violation; it is one finding.
  const std::string key = cause.empty()
                              ? fmt::format("{} {} {}", finding.rule, finding.tap, finding.op)
                              : fmt::format("{} of {}", finding.rule, cause);
  if (known_.insert(key).second) program_.findings.push_back(std::move(finding));
}

std::string ProgramFindings::step_fix(const std::string& tap, const CollectiveStep& step,
                                      const Module* consumer, Phase phase) const {
  std::string point;
  if (program_.find_module(tap) != nullptr) {
    point = tap + ".out";
  } else if (tap.ends_with(".in") || tap.ends_with(".stat")) {
    point = tap;
  } else if (consumer != nullptr && tap.starts_with(consumer->path + ".stat")) {
    point = consumer->path + ".stat";
  } else if (consumer != nullptr) {
    point = consumer->path + ".in";
  } else {
    return to_string(step);
  }
  return point_entry(point, with_step(program_.plan.steps(phase, point), step, program_.mesh));
}

std::string ProgramFindings::fix_text(const std::string& fix, int index, const Placement& required,
                                      int axis, const Module* consumer, Phase phase) const {
  const Value& wrong = program_.value(index);
  const auto i = static_cast<std::size_t>(axis);
  const std::string& name = program_.mesh.axes[i].name;
  if (fix == kRepairStep) {
    const Module* made = program_.find_module(wrong.name);
    const PlanDim features = made != nullptr && made->role == ModuleRole::lm_head ? PlanDim::vocab
                                                                                  : PlanDim::features;
    const auto step = step_between(program_.value(index).layout.placements[i], required, name,
                                   features);
    return step ? step_fix(wrong.name, *step, consumer, phase) : "";
  }
  if (fix == kRecut) {
    const Module* maker = maker_of(index, phase);
    return maker == nullptr ? "" : "in weights " + cut_entry(*maker, true, name);
  }
  if (fix.empty() || fix[0] == '"' || fix.starts_with("in weights ")) return fix;
  // The step alone, as an op of a user's may word it.
  if (program_.find_module(wrong.name) != nullptr)
    return fmt::format("\"{}.out\": \"{}\"", wrong.name, fix);
  return consumer != nullptr ? fmt::format("\"{}.in\": \"{}\"", consumer->path, fix) : fix;
}

const Module* ProgramFindings::maker_of(int index, Phase phase) const {
  const auto phases = program_.instructions.find(phase);
  if (phases == program_.instructions.end()) return nullptr;
  const std::vector<Instruction>& all = phases->second;
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const auto output = std::find(at->outputs.begin(), at->outputs.end(), index);
    if (output == at->outputs.end()) continue;
    if (at->op != nullptr && (at->op->name() == "linear" || at->op->name() == "embedding"))
      return program_.find_module(at->module);
    if (at->inputs.empty()) return nullptr;
    const auto number = static_cast<std::size_t>(output - at->outputs.begin());
    index = at->inputs[std::min(number, at->inputs.size() - 1)];
  }
  return nullptr;
}

}  // namespace shardcheck
