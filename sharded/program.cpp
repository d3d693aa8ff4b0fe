// SPDX-License-Identifier: Apache-2.0
#include "sharded/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/error.hpp"
#include "sharded/op.hpp"
#include "sharded/partition_rules.hpp"
#include "sharded/placement_rules.hpp"
#include "sharded/program_findings.hpp"
#include "sharded/step_rules.hpp"

namespace shardcheck {
namespace {

/// Walks the graph once per phase, propagating layouts and inserting the plan's collectives.
class ProgramBuilder {
 public:
  ProgramBuilder(Program& program, const Registry& ops, const PartitionCheck& partitions,
                 const RepairChoices& choices)
      : program_(program), ops_(ops), partitions_(partitions), findings_(program, partitions, choices) {
    for (const Module& module : program.modules) modules_[module.path] = &module;
  }

  void build(Phase phase) {
    phase_ = phase;
    values_.clear();
    produced_.clear();
    collected_.clear();
    const Mesh& mesh = program_.mesh;
    for (const char* source : {"ids", "positions"})
      values_[source] = add_value({source, Layout::replicated(1, mesh)});
    Graph graph = build_graph(program_.config);
    for (Node& node : graph.nodes) {
      const auto replaced = program_.plan.ops.find(node.outputs[0]);
      if (replaced != program_.plan.ops.end()) replace_op(node, replaced->second);
      add_node(node);
    }
    finish(values_.at(graph.nodes.back().outputs[0]));
  }
  const std::vector<ProgramFindings::Site>& sites() const { return findings_.sites(); }

 private:
  void replace_op(Node& node, const std::string& op) const {
    const std::vector<std::string> names = ops_.names();
    if (std::find(names.begin(), names.end(), op) == names.end()) {
      throw InputError(fmt::format(
          "the plan's \"ops\" ask for \"{}\" at {}, but no op is called so; did you mean \"{}\"? An op of "
          "your own is added to the Registry in C++",
          op, node.outputs[0], nearest_name(op, names)));
    }
    node.op = op;
  }
  const Module* find_module(std::string_view path) const {
    const auto found = modules_.find(path);
    return found == modules_.end() ? nullptr : found->second;
  }
  int add_value(Value value) {
    program_.values.push_back(std::move(value));
    return static_cast<int>(program_.values.size()) - 1;
  }
  Value& value(int index) { return program_.values[static_cast<std::size_t>(index)]; }
  std::vector<Instruction>& instructions() { return program_.instructions[phase_]; }

  void add_node(const Node& node) {
    const Op& op = ops_.find(node.op);
    const Module* module = find_module(node.module);
    // Only ops whose output is the module's own use its weights; `split` and the like belong to it in name alone.
    const bool owns = module != nullptr && node.outputs[0] == node.module;
    if (owns) {
      collect_inputs(node);
      const std::vector<CollectiveStep> statistic = live_steps(node.module + ".stat");
      if (!statistic.empty()) return add_norm_of_parts(node, op, statistic);
    }
    add_op(node, op, module, owns);
  }

  /// A norm whose statistic the ranks make together: the sum of squares of what each has, the plan's steps, and the norm
  /// of the same with the sum of all.
  void add_norm_of_parts(const Node& norm, const Op& whole,
                         const std::vector<CollectiveStep>& steps) {
    const std::string name = norm.module + ".stat";
    if (whole.name() != "rms_norm") {
      throw InputError(fmt::format(
          "{}: only RMSNorm's one sum of squares can be made of the ranks' parts; {}", name,
          whole.name() == "layer_norm"
              ? fmt::format("LayerNorm needs the mean before it can sum the squares around it: "
                            "gather the input with {}.in instead",
                            norm.module)
              : fmt::format("{} has no such sum over ranks: remove the steps", whole.name())));
    }
    const Op& op = ops_.find("rms_statistic");
    const Node statistic{"rms_statistic", norm.module, norm.inputs, {name + ".partial"}, {}};
    Instruction instruction;
    instruction.op = &op;
    instruction.module = norm.module;
    instruction.site = statistic.outputs[0];
    instruction.inputs = {values_.at(norm.inputs[0])};
    Value partial{instruction.site, place(op, statistic, nullptr, instruction.inputs)[0]};
    partial.dtype = ValueDType::accumulate;
    int sum = add_value(std::move(partial));
    instruction.outputs = {sum};
    instructions().push_back(instruction);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      const std::string stage = last     ? name
                                : i == 0 ? name + ".reduced"
                                         : fmt::format("{}.reduced.{}", name, i);
      sum = add_collective(steps, i, norm.module, ".stat", stage, sum);
    }
    values_[name] = sum;
    Node apply = norm;
    apply.op = "rms_apply";
    apply.inputs.push_back(name);
    add_op(apply, ops_.find(apply.op), find_module(norm.module), true);
  }

  /// One op with the steps at its module's output.
  void add_op(const Node& node, const Op& op, const Module* module, bool owns) {
    // A residual, say, adds what was produced, whatever steps the modules that read it too ask for.
    std::vector<int> inputs;
    for (const std::string& input : node.inputs) {
      const auto produced = produced_.find(input);
      const bool apart = !owns && produced != produced_.end();
      inputs.push_back(apart ? produced->second : values_.at(input));
    }

    const std::vector<Layout> outputs = place(op, node, owns ? module : nullptr, inputs);
    const bool partial_weight = owns && has_partial_axis(outputs[0], inputs);
    const std::vector<CollectiveStep> steps = owns ? live_steps(node.module + ".out")
                                                   : std::vector<CollectiveStep>{};
    const bool separate_bias = owns && module->kind == ModuleKind::linear && module->has_bias &&
                               partial_weight && !steps.empty();

    Instruction instruction;
    instruction.op = &op;
    instruction.module = node.module;
    instruction.inputs = inputs;
    instruction.attributes = node.attributes;
    instruction.adds_bias = owns && module->kind == ModuleKind::linear && module->has_bias &&
                            !separate_bias;
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      Value out{node.outputs[i] + (steps.empty() ? "" : ".partial"), outputs[i]};
      if (!steps.empty() && outputs[i].any_partial()) out.dtype = ValueDType::wire;
      out.rows = op.rows();
      if (out.rows == ValueRows::cache)
        out.window = static_cast<std::int64_t>(node.attributes.at("window"));
      instruction.outputs.push_back(add_value(std::move(out)));
    }
    pass_broken(owns ? module : nullptr, inputs, instruction.outputs);
    instruction.site = value(instruction.outputs[0]).name;
    instructions().push_back(instruction);
    if (partial_weight && steps.empty() && instruction.adds_bias)
      bias_on_partial(node, instruction.outputs[0]);

    int result = instruction.outputs[0];
    int stage = 0;
    const auto stage_name = [&](bool last) {
      if (last) return node.outputs[0];
      const int number = stage++;
      return number == 0 ? node.outputs[0] + ".reduced"
                         : fmt::format("{}.reduced.{}", node.outputs[0], number);
    };
    bool bias_due = separate_bias;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool last = i + 1 == steps.size();
      result = add_collective(steps, i, node.module, ".out", stage_name(last && !bias_due), result);
      // As soon as the sum is whole: a gather that follows moves what has its bias already.
      if (bias_due && (last || !value(result).layout.any_partial())) {
        result = add_bias(node, result, stage_name(last));
        bias_due = false;
      }
    }
    values_[node.outputs[0]] = result;
    for (std::size_t i = 1; i < node.outputs.size(); ++i)
      values_[node.outputs[i]] = instruction.outputs[i];
  }

  /// Output partial on an axis where no input was: the weight made it so.
  static bool newly_partial(const Placement& out, const std::vector<Placement>& in) {
    return out.is_partial() &&
           std::none_of(in.begin(), in.end(), [](const Placement& p) { return p.is_partial(); });
  }
  bool has_partial_axis(const Layout& out, const std::vector<int>& inputs) {
    for (std::size_t axis = 0; axis < out.placements.size(); ++axis) {
      std::vector<Placement> in;
      for (const int input : inputs) in.push_back(value(input).layout.placements[axis]);
      if (newly_partial(out.placements[axis], in)) return true;
    }
    return false;
  }

  /// Steps whose group has more than one rank: a group of one does nothing and has no taps.
  std::vector<CollectiveStep> live_steps(const std::string& point) {
    std::vector<CollectiveStep> live;
    for (const CollectiveStep& step : program_.plan.steps(phase_, point)) {
      if (program_.mesh.group_size(axes_of(step)) > 1) live.push_back(step);
    }
    return live;
  }
  std::vector<int> axes_of(const CollectiveStep& step) const {
    std::vector<int> axes;
    for (const std::string& axis : step.axes) axes.push_back(program_.mesh.axis_index(axis));
    return axes;
  }

  /// Runs the `.in` steps of a module on its input, once for all modules that read it from here on.
  void collect_inputs(const Node& node) {
    const std::vector<CollectiveStep> steps = live_steps(node.module + ".in");
    if (steps.empty()) return;
    int& current = values_.at(node.inputs[0]);
    const auto done = collected_.find(current);
    if (done != collected_.end()) {
      if (done->second == steps) return;
      throw InputError(fmt::format(
          "{}.in: its input is collected already, by another module that shares it and asks for "
          "other steps; state the steps once",
          node.module));
    }
    int result = current;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::string name = i + 1 == steps.size() ? node.module + ".in"
                                                     : fmt::format("{}.in.{}", node.module, i);
      result = add_collective(steps, i, node.module, ".in", name, result);
    }
    produced_[node.inputs[0]] = current;
    current = result;
    collected_[result] = steps;
  }

  std::vector<Layout> place(const Op& op, const Node& node, const Module* module,
                            const std::vector<int>& inputs) {
    std::vector<std::int64_t> features;
    for (const int input : inputs) features.push_back(value(input).layout.features);
    const std::vector<std::int64_t> out_features = op.shapes(node, program_.config, module, features);
    // A violation is repaired by assumption and the rule asked again; every repair settles one operand on one axis.
    const std::size_t tries = inputs.size() * program_.mesh.axes.size() * 2 + 2;
    for (std::size_t attempt = 0; attempt < tries; ++attempt) {
      PlaceQuery query{node,
                       program_.config,
                       program_.mesh,
                       module,
                       module == nullptr ? nullptr : &placement_of(*module),
                       {}};
      for (const int input : inputs) query.inputs.push_back(value(input).layout);
      Placed placed = op.place(query);
      std::vector<Layout> outputs = placed.violations.empty()
                                        ? std::move(placed.outputs)
                                        : findings_.refuse(node, placed.violations, inputs, module, phase_);
      if (outputs.empty()) continue;
      for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].features = out_features[i];
      return outputs;
    }
    // No assumption satisfies the rule: the run can only show where it ends.
    program_.forced_shapes = true;
    std::vector<Layout> outputs;
    for (const std::int64_t n : out_features)
      outputs.push_back(Layout::replicated(n, program_.mesh));
    return outputs;
  }

  /// How a module's weight is cut: where the plan's ranges are no partition, as is assumed in their place.
  const ModulePlacement& placement_of(const Module& module) const {
    const auto assumed = partitions_.assumed.find(module.path);
    return assumed == partitions_.assumed.end() ? program_.plan.placement(module.path) : assumed->second;
  }

  /// Ranges that come from a broken partition, or from a value that has them.
  void pass_broken(const Module* module, const std::vector<int>& inputs, const std::vector<int>& outputs) {
    if (partitions_.broken.empty()) return;
    const bool broken = (module != nullptr && partitions_.broken.contains(module->path)) ||
                        std::any_of(inputs.begin(), inputs.end(),
                                    [this](int input) { return findings_.is_broken(input); });
    for (const int output : outputs)
      if (broken && !value(output).layout.owned.empty()) findings_.mark_broken(output);
  }

  void bias_on_partial(const Node& node, int output) {
    Layout& layout = value(output).layout;
    for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
      if (!layout.placements[axis].is_partial()) continue;
      const std::string& name = program_.mesh.axes[axis].name;
      findings_.add(
          {"bias_on_partial", node.op, node.outputs[0], name, "P(sum)", "R",
           fmt::format("\"{}.out\": \"all_reduce(sum, {})\"", node.module, name),
           "each rank adds the bias to its partial sum, so the sum would hold it once per rank"});
      layout = assume_replicated(layout, program_.mesh, static_cast<int>(axis));
    }
  }

  int add_bias(const Node& node, int input, const std::string& name) {
    const Op& op = ops_.find("bias");
    const Node bias{"bias", node.module, {value(input).name}, {name}, {}};
    Instruction instruction;
    instruction.op = &op;
    instruction.module = node.module;
    instruction.inputs = {input};
    const std::vector<Layout> outputs = place(op, bias, find_module(node.module),
                                              instruction.inputs);
    instruction.outputs = {add_value({name, outputs[0]})};
    instruction.site = name;
    instructions().push_back(instruction);
    return instruction.outputs[0];
  }

  /// The step at place `at` of those at a module's point.
  int add_collective(const std::vector<CollectiveStep>& steps, std::size_t at, const std::string& module,
                     std::string_view point, const std::string& name, int input) {
    Instruction instruction;
    instruction.collective = steps[at];
    instruction.axes = axes_of(steps[at]);
    instruction.site = name;
    instruction.module = module;
    instruction.inputs = {input};
    StepPlaced placed = place_step(steps[at], instruction.axes, value(input).layout, program_.mesh,
                                   program_.config.head_dim);
    const std::string where = fmt::format("{}{}", module, point);
    Value out{name, placed.misfits.empty() ? findings_.fitting(placed.out, steps, at, where, name, input)
                                           : findings_.misplaced(placed, steps, at, where, input)};
    if (point == ".in" && at + 1 == steps.size() && placed.misfits.empty())
      follow_columns(steps[at], find_module(module), value(input).layout, out.layout);
    if (value(input).dtype == ValueDType::accumulate) {
      out.dtype = ValueDType::accumulate;
    } else if (out.layout.any_partial()) {
      // A sum over one axis that is partial on another goes into the next reduction as it is.
      out.dtype = ValueDType::wire;
    }
    out.rows = value(input).rows;
    out.window = value(input).window;
    instruction.outputs = {add_value(std::move(out))};
    pass_broken(nullptr, instruction.inputs, instruction.outputs);
    instructions().push_back(instruction);
    return instruction.outputs[0];
  }

  /// What is cut for a row-parallel linear is cut as its columns are: by heads, in chunks, in the ranges of the plan.
  void follow_columns(const CollectiveStep& step, const Module* module, const Layout& before, Layout& after) const {
    const bool cuts = step.kind == CollectiveStep::Kind::slice ||
                      step.kind == CollectiveStep::Kind::reduce_scatter ||
                      step.kind == CollectiveStep::Kind::all_to_all;
    if (!cuts || activation_dim(step.dim) != Dim::features || module == nullptr ||
        module->kind != ModuleKind::linear || after.features != module->in) {
      return;
    }
    const ModulePlacement& weight = placement_of(*module);
    if (weight.cols.empty() || !before.owned.empty()) return;
    for (std::size_t axis = 0; axis < after.placements.size(); ++axis) {
      const ModulePlacement::AxisCut* cut = weight.on(static_cast<int>(axis));
      const bool columns = cut != nullptr && !cut->rows;
      if (columns != (after.placements[axis] == Placement::sharded(Dim::features))) return;
    }
    after.owned = weight.cols;
  }

  /// The logits must be whole on every rank.
  void finish(int result) {
    Value& logits = value(result);
    for (std::size_t axis = 0; axis < program_.mesh.axes.size(); ++axis) {
      const Placement met = value(result).layout.placements[axis];
      if (met.kind == Placement::Kind::R) continue;
      const std::string& name = program_.mesh.axes[axis].name;
      const std::optional<CollectiveStep> step = step_between(met, Placement::replicated(), name, PlanDim::vocab);
      findings_.add({"output_not_replicated", "output", logits.name, name, to_string(met), "R",
                     step ? findings_.step_fix(logits.name, *step, nullptr, phase_) : "",
                     "the logits must be whole on every rank"});
      if (!met.is_partial()) program_.forced_shapes = true;
      logits.layout = assume_replicated(logits.layout, program_.mesh, static_cast<int>(axis));
    }
    program_.result[phase_] = result;
  }

  Program& program_;
  const Registry& ops_;
  const PartitionCheck& partitions_;
  ProgramFindings findings_;
  std::unordered_map<std::string_view, const Module*> modules_;  // by path, into the program
  Phase phase_ = Phase::prefill;
  std::map<std::string, int, std::less<>> values_;
  std::map<std::string, int, std::less<>> produced_;  // those that the modules' inputs were collected from
  std::map<int, std::vector<CollectiveStep>> collected_;
};

/// Decode reads what prefill kept, so both must place keys and values alike.
void check_cache_of_phases(Program& program) {
  const auto caches = [&](Phase phase) {
    std::vector<const Instruction*> found;
    for (const Instruction& instruction : program.instructions.at(phase)) {
      if (instruction.op != nullptr && instruction.op->name() == "cache") found.push_back(&instruction);
    }
    return found;
  };
  const std::vector<const Instruction*> kept = caches(Phase::prefill), read = caches(Phase::decode);
  for (std::size_t i = 0; i < std::min(kept.size(), read.size()); ++i) {
    for (std::size_t side = 0; side < 2; ++side) {
      const Layout& prefill = program.value(kept[i]->inputs[side]).layout;
      const Layout& decode = program.value(read[i]->inputs[side]).layout;
      if (prefill == decode) continue;
      std::size_t axis = 0;
      while (axis + 1 < prefill.placements.size() && prefill.placements[axis] == decode.placements[axis])
        ++axis;
      program.findings.push_back({"cache_moves", "cache", program.value(read[i]->outputs[side]).name,
                                  program.mesh.axes[axis].name, to_string(decode.placements[axis]),
                                  to_string(prefill.placements[axis]), "",
                                  "decode looks for keys and values elsewhere than prefill kept them"});
      program.forced_shapes = true;
    }
  }
}

}  // namespace

Ranges held_rows(const Value& value, const Mesh& mesh, int rank, std::span<const Step* const> steps) {
  return value.rows == ValueRows::cache
             ? value.layout.cache_ranges(mesh, rank, steps, value.window)
             : value.layout.row_ranges(mesh, rank, *steps.back());
}

const Module* Program::find_module(std::string_view path) const {
  for (const Module& module : modules) {
    if (module.path == path) return &module;
  }
  return nullptr;
}

Program build_program(const Model& model, const ResolvedPlan& plan, const Registry& ops) {
  const PartitionCheck partitions = check_partitions(model.config(), model.modules(), plan);
  const bool within = partitions.findings.empty();
  const ResolvedPlan cut_off = within ? ResolvedPlan{} : within_weights(plan, model.modules());
  std::vector<ProgramFindings::Site> sites;
  const auto build = [&](const RepairChoices& choices) {
    Program program;
    program.config = model.config();
    program.mesh = plan.mesh;
    program.plan = within ? plan : cut_off;
    program.modules = model.modules();
    ProgramBuilder builder(program, ops, partitions, choices);
    builder.build(Phase::prefill);
    if (plan.points.at(Phase::prefill) == plan.points.at(Phase::decode)) {
      program.instructions[Phase::decode] = program.instructions[Phase::prefill];
      program.result[Phase::decode] = program.result[Phase::prefill];
    } else {
      builder.build(Phase::decode);
    }
    sites = builder.sites();
    return program;
  };
  RepairChoices choices;
  Program best = build(choices);
  // Of several repairs of a mistake the likeliest is the one that explains the most of what else was found.
  std::set<std::string> tried;
  constexpr std::size_t kMostSites = 24;
  for (std::size_t next = 0; !best.findings.empty() && next < sites.size() && tried.size() < kMostSites;) {
    const ProgramFindings::Site site = sites[next];
    if (!tried.insert(site.key).second) {
      ++next;
      continue;
    }
    std::vector<ProgramFindings::Site> kept_sites = sites;
    for (std::size_t option = 0; option < site.options; ++option) {
      RepairChoices other = choices;
      other[site.key] = option;
      Program program = build(other);
      if (program.findings.size() >= best.findings.size()) continue;
      best = std::move(program);
      choices = std::move(other);
      kept_sites = sites;
    }
    sites = std::move(kept_sites);
    next = 0;
  }
  check_cache_of_phases(best);
  return best;
}

}  // namespace shardcheck
