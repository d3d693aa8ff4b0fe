// SPDX-License-Identifier: Apache-2.0
#include "sharded/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/error.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

/// Walks the graph once per phase, propagating layouts and inserting the plan's collectives.
class ProgramBuilder {
 public:
  ProgramBuilder(Program& program, const Registry& ops) : program_(program), ops_(ops) {
    for (const Module& module : program.modules) modules_[module.path] = &module;
  }

  void build(Phase phase) {
    phase_ = phase;
    values_.clear();
    collected_.clear();
    const Mesh& mesh = program_.mesh;
    for (const char* source : {"ids", "positions"})
      values_[source] = add_value({source, Layout::replicated(1, mesh)});
    const Graph graph = build_graph(program_.config);
    for (const Node& node : graph.nodes) add_node(node);
    finish(values_.at(graph.nodes.back().outputs[0]));
  }

 private:
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
    if (owns) collect_inputs(node);
    std::vector<int> inputs;
    for (const std::string& input : node.inputs) inputs.push_back(values_.at(input));

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
      result = add_collective(steps[i], node.module, stage_name(last && !bias_due), result);
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

  /// Runs the `.in` steps of a module on its input, once for all modules that share it.
  void collect_inputs(const Node& node) {
    const std::vector<CollectiveStep> steps = live_steps(node.module + ".in");
    if (!live_steps(node.module + ".stat").empty()) {
      throw InputError(fmt::format(
          "{}.stat: collectives of a norm's statistic are not available yet; gather the input "
          "with {}.in instead",
          node.module, node.module));
    }
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
      result = add_collective(steps[i], node.module, name, result);
    }
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
                       module == nullptr ? nullptr : &program_.plan.placement(module->path),
                       {}};
      for (const int input : inputs) query.inputs.push_back(value(input).layout);
      Placed placed = op.place(query);
      if (placed.violations.empty()) {
        for (std::size_t i = 0; i < placed.outputs.size(); ++i)
          placed.outputs[i].features = out_features[i];
        return placed.outputs;
      }
      for (const PlacementViolation& violation : placed.violations) {
        record(violation, node, module, inputs[static_cast<std::size_t>(violation.input)]);
      }
    }
    // No assumption satisfies the rule: the run can only show where it ends.
    program_.forced_shapes = true;
    std::vector<Layout> outputs;
    for (const std::int64_t n : out_features)
      outputs.push_back(Layout::replicated(n, program_.mesh));
    return outputs;
  }

  void record(const PlacementViolation& violation, const Node& node, const Module* consumer, int input) {
    Value& wrong = value(input);
    const auto axis = static_cast<std::size_t>(violation.axis);
    const Placement met = wrong.layout.placements[axis];
    add_finding({violation.rule, node.op, wrong.name, program_.mesh.axes[axis].name, to_string(met),
                 to_string(violation.required),
                 violation.fix.empty() ? "" : fix_at(wrong.name, violation.fix, consumer),
                 violation.sentence});
    if (!met.is_partial()) program_.forced_shapes = true;
    wrong.layout = violation.assumed;
  }

  void add_finding(Finding finding) {
    // Both phases meet the same violation; it is one finding.
    const auto same = [&](const Finding& f) {
      return f.rule == finding.rule && f.tap == finding.tap && f.op == finding.op;
    };
    if (std::none_of(program_.findings.begin(), program_.findings.end(), same)) {
      program_.findings.push_back(std::move(finding));
    }
  }

  /// The plan entry that would repair a value: at its module's output, or at the input of the module that reads it.
  std::string fix_at(const std::string& tap, const std::string& step, const Module* consumer) const {
    if (find_module(tap) != nullptr) return fmt::format("\"{}.out\": \"{}\"", tap, step);
    return consumer != nullptr ? fmt::format("\"{}.in\": \"{}\"", consumer->path, step) : step;
  }

  void bias_on_partial(const Node& node, int output) {
    const Layout& layout = value(output).layout;
    for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
      if (!layout.placements[axis].is_partial()) continue;
      const std::string& name = program_.mesh.axes[axis].name;
      add_finding(
          {"bias_on_partial", node.op, node.outputs[0], name, "P(sum)", "R",
           fmt::format("\"{}.out\": \"all_reduce(sum, {})\"", node.module, name),
           "each rank adds the bias to its partial sum, so the sum would hold it once per rank"});
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

  int add_collective(const CollectiveStep& step, const std::string& module, const std::string& name,
                     int input) {
    Instruction instruction;
    instruction.collective = step;
    instruction.axes = axes_of(step);
    instruction.site = name;
    instruction.module = module;
    instruction.inputs = {input};
    Value out{name, collect(step, instruction.axes, input)};
    // A sum over one axis that is partial on another goes into the next reduction as it is.
    if (out.layout.any_partial()) out.dtype = ValueDType::wire;
    out.rows = value(input).rows;
    out.window = value(input).window;
    instruction.outputs = {add_value(std::move(out))};
    instructions().push_back(instruction);
    return instruction.outputs[0];
  }

  /// Layout after a collective; a step that doesn't fit its input's placement is a finding.
  Layout collect(const CollectiveStep& step, const std::vector<int>& group, int input) {
    // An axis of one rank cuts nothing: a value is whole along it, whatever the step says.
    std::vector<int> axes = group;
    std::erase_if(axes, [this](int axis) {
      return program_.mesh.axes[static_cast<std::size_t>(axis)].size == 1;
    });
    using Kind = CollectiveStep::Kind;
    const Mesh& mesh = program_.mesh;
    const bool split_tokens = tokens(step.dim);
    const Dim dim = split_tokens ? Dim::tokens : Dim::features;
    Placement required = Placement::replicated();
    std::string sentence;
    switch (step.kind) {
      case Kind::all_reduce:
      case Kind::reduce_scatter:
        required = step.op == ReduceOp::sum ? Placement::partial()
                                            : Placement{Placement::Kind::P_max, Dim::features};
        sentence = "a sum over ranks of a value that isn't partial multiplies or mixes it";
        break;
      case Kind::all_gather:
        required = Placement::sharded(dim);
        sentence = "a gather needs a value that is cut along that dimension";
        break;
      case Kind::all_to_all:
        required = Placement::sharded(tokens(step.concat) ? Dim::tokens : Dim::features);
        sentence = "an all_to_all needs a value that is cut along the dimension it joins";
        break;
      case Kind::broadcast:
      case Kind::slice:
        sentence = "this step needs a value that every rank holds whole";
        break;
    }
    for (const int axis : axes) {
      const Placement met = value(input).layout.placements[static_cast<std::size_t>(axis)];
      if (met == required) continue;
      add_finding({"collective_misplaced", to_string(step), value(input).name,
                   mesh.axes[static_cast<std::size_t>(axis)].name, to_string(met),
                   to_string(required), "", sentence});
      if (step.kind != Kind::all_reduce) program_.forced_shapes = true;
    }
    Layout out = value(input).layout;
    const std::int64_t unit = step.dim == PlanDim::head || step.dim == PlanDim::kv_head
                                  ? program_.config.head_dim
                                  : 1;
    const auto set_all = [&](Placement placement) {
      for (const int axis : axes) out.placements[static_cast<std::size_t>(axis)] = placement;
    };
    const auto cut_tokens = [&] {
      set_all(Placement::sharded(Dim::tokens));
      out.token_axes.insert(out.token_axes.end(), axes.begin(), axes.end());
    };
    const auto join_tokens = [&] {
      for (const int axis : axes) std::erase(out.token_axes, axis);
      set_all(Placement::replicated());
    };
    switch (step.kind) {
      case Kind::all_reduce:
      case Kind::broadcast:
        set_all(Placement::replicated());
        return out;
      case Kind::all_gather:
        if (!split_tokens) return gathered_features(std::move(out), mesh, axes);
        join_tokens();
        return out;
      case Kind::reduce_scatter:
      case Kind::slice:
        set_all(Placement::replicated());
        if (!split_tokens) return split_features(std::move(out), mesh, axes, unit);
        cut_tokens();
        return out;
      case Kind::all_to_all:
        if (tokens(step.concat)) {
          join_tokens();
        } else {
          out = gathered_features(std::move(out), mesh, axes);
        }
        if (!split_tokens) return split_features(std::move(out), mesh, axes, unit);
        cut_tokens();
        return out;
    }
    return out;
  }
  static bool tokens(PlanDim dim) { return dim == PlanDim::tokens || dim == PlanDim::sequence; }

  /// The logits must be whole on every rank.
  void finish(int result) {
    Value& logits = value(result);
    for (std::size_t axis = 0; axis < program_.mesh.axes.size(); ++axis) {
      const Placement met = logits.layout.placements[axis];
      if (met.kind == Placement::Kind::R) continue;
      const std::string& name = program_.mesh.axes[axis].name;
      const std::string step = met.is_partial()
                                   ? fmt::format("all_reduce(sum, {})", name)
                                   : fmt::format("all_gather({}, {})",
                                                 met.dim == Dim::tokens ? "tokens" : "vocab", name);
      add_finding({"output_not_replicated", "output", logits.name, name, to_string(met), "R",
                   fix_at(logits.name, step, nullptr), "the logits must be whole on every rank"});
      if (!met.is_partial()) program_.forced_shapes = true;
      logits.layout = assume_replicated(logits.layout, program_.mesh, static_cast<int>(axis));
    }
    program_.result[phase_] = result;
  }

  Program& program_;
  const Registry& ops_;
  std::unordered_map<std::string_view, const Module*> modules_;  // by path, into the program
  Phase phase_ = Phase::prefill;
  std::map<std::string, int, std::less<>> values_;
  std::map<int, std::vector<CollectiveStep>> collected_;
};

}  // namespace

const Module* Program::find_module(std::string_view path) const {
  for (const Module& module : modules) {
    if (module.path == path) return &module;
  }
  return nullptr;
}

Program build_program(const Model& model, const ResolvedPlan& plan, const Registry& ops) {
  Program program;
  program.config = model.config();
  program.mesh = plan.mesh;
  program.plan = plan;
  program.modules = model.modules();
  ProgramBuilder builder(program, ops);
  builder.build(Phase::prefill);
  if (plan.points.at(Phase::prefill) == plan.points.at(Phase::decode)) {
    program.instructions[Phase::decode] = program.instructions[Phase::prefill];
    program.result[Phase::decode] = program.result[Phase::prefill];
  } else {
    builder.build(Phase::decode);
  }
  return program;
}

}  // namespace shardcheck
