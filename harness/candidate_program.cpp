// SPDX-License-Identifier: Apache-2.0
// Which op made which tap of a candidate: the model's graph, with placements as the candidate declares them.
#include <algorithm>

#include "harness/candidate.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

class CandidateProgram {
 public:
  CandidateProgram(const Model& model, const Registry& ops, const Mesh& mesh,
                   const std::map<std::string, Layout, std::less<>>& layouts)
      : ops_(ops), layouts_(layouts) {
    program_.config = model.config();
    program_.mesh = mesh;
    program_.modules = model.modules();
    program_.plan.mesh = mesh;
    for (const Module& module : program_.modules) program_.plan.weights[module.path] = {};
  }

  Program build() {
    for (const char* source : {"ids", "positions"})
      values_[source] = add({source, Layout::replicated(1, program_.mesh)});
    const Graph graph = build_graph(program_.config);
    for (const Node& node : graph.nodes) add_node(node);
    program_.instructions[Phase::decode] = program_.instructions[Phase::prefill];
    for (const Phase phase : {Phase::prefill, Phase::decode})
      program_.result[phase] = values_.at(graph.nodes.back().outputs[0]);
    program_.plan.points = {{Phase::prefill, {}}, {Phase::decode, {}}};
    return std::move(program_);
  }

 private:
  int add(Value value) {
    program_.values.push_back(std::move(value));
    return static_cast<int>(program_.values.size()) - 1;
  }
  const Layout* layout(const std::string& name) const {
    const auto found = layouts_.find(name);
    return found == layouts_.end() ? nullptr : &found->second;
  }

  void add_node(const Node& node) {
    const Op& op = ops_.find(node.op);
    const Module* module = program_.find_module(node.module);
    const bool owns = module != nullptr && node.outputs[0] == node.module;
    Instruction instruction;
    instruction.op = &op;
    instruction.module = node.module;
    instruction.attributes = node.attributes;
    std::vector<std::int64_t> features;
    for (const std::string& input : node.inputs) {
      instruction.inputs.push_back(values_.at(input));
      features.push_back(program_.value(values_.at(input)).layout.features);
    }
    // A module's stages before its own output: what the candidate shows of X.partial and X.reduced.
    std::vector<std::string> stages;
    for (const char* suffix : {".partial", ".reduced"}) {
      if (owns && layout(node.module + suffix) != nullptr) stages.push_back(node.module + suffix);
    }
    stages.push_back(node.outputs[0]);
    const std::vector<std::int64_t> sizes = op.shapes(node, program_.config, module, features);
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const std::string name = i == 0 ? stages.front() : node.outputs[i];
      Value out{name, layout(name) != nullptr ? *layout(name)
                                              : Layout::replicated(sizes[i], program_.mesh)};
      if (out.layout.any_partial()) out.dtype = ValueDType::wire;
      out.rows = op.rows();
      if (out.rows == ValueRows::cache)
        out.window = static_cast<std::int64_t>(node.attributes.at("window"));
      instruction.outputs.push_back(add(std::move(out)));
      values_[node.outputs[i]] = instruction.outputs.back();
    }
    instruction.site = stages.front();
    const bool has_bias = owns && module->kind == ModuleKind::linear && module->has_bias;
    const bool partial = program_.value(instruction.outputs[0]).layout.any_partial();
    instruction.adds_bias = has_bias && !partial && stages.front() != node.module + ".reduced";
    if (owns && module->kind != ModuleKind::norm) place_weight(*module, instruction);
    program_.instructions[Phase::prefill].push_back(instruction);

    bool biased = instruction.adds_bias;
    for (std::size_t stage = 1; stage < stages.size(); ++stage) {
      const bool last = stage + 1 == stages.size();
      // X.partial -> X.reduced is the collective, X.reduced -> X the bias; X.partial -> X with a bias is both in one, and
      // can't be taken apart from outside: the linear's fused check covers it.
      const bool is_bias = has_bias && last && !biased &&
                           stages[stage - 1] == node.module + ".reduced";
      if (has_bias && last && !biased && !is_bias) {
        values_[node.outputs[0]] = add({node.outputs[0], *layout_or(node.outputs[0], sizes[0])});
        continue;
      }
      add_stage(node, stages[stage], is_bias, sizes[0]);
    }
  }

  std::optional<Layout> layout_or(const std::string& name, std::int64_t features) const {
    return layout(name) != nullptr ? *layout(name) : Layout::replicated(features, program_.mesh);
  }

  void add_stage(const Node& node, const std::string& name, bool is_bias, std::int64_t features) {
    const int input = values_.at(node.outputs[0]);
    const Layout before = program_.value(input).layout;
    Instruction instruction;
    instruction.module = node.module;
    instruction.inputs = {input};
    instruction.site = name;
    instruction.outputs = {add({name, *layout_or(name, features)})};
    const Layout& after = program_.value(instruction.outputs[0]).layout;
    if (is_bias) {
      instruction.op = &ops_.find("bias");
    } else {
      collective_between(before, after, instruction);
    }
    values_[node.outputs[0]] = instruction.outputs[0];
    program_.instructions[Phase::prefill].push_back(instruction);
  }

  /// The collective that takes one placement to the other, over all axes where they differ.
  void collective_between(const Layout& before, const Layout& after, Instruction& instruction) {
    using Kind = CollectiveStep::Kind;
    CollectiveStep& step = instruction.collective;
    step.kind = Kind::broadcast;
    for (std::size_t axis = 0; axis < before.placements.size(); ++axis) {
      const Placement& from = before.placements[axis];
      const Placement& to = after.placements[axis];
      if (from == to) continue;
      instruction.axes.push_back(static_cast<int>(axis));
      step.axes.push_back(program_.mesh.axes[axis].name);
      const Dim dim = to.kind == Placement::Kind::S ? to.dim : from.dim;
      step.dim = dim == Dim::tokens ? PlanDim::tokens : PlanDim::features;
      if (from.is_partial()) {
        step.kind = to.kind == Placement::Kind::S ? Kind::reduce_scatter : Kind::all_reduce;
        step.op = from.kind == Placement::Kind::P_max ? ReduceOp::max : ReduceOp::sum;
      } else {
        step.kind = to.kind == Placement::Kind::S ? Kind::slice : Kind::all_gather;
      }
    }
  }

  /// Rows as the output is cut, columns as the input of a partial output is.
  void place_weight(const Module& module, const Instruction& instruction) {
    ModulePlacement& placement = program_.plan.weights[module.path];
    const Layout& out = program_.value(instruction.outputs[0]).layout;
    const bool table = module.kind == ModuleKind::embedding;
    (table ? placement.cols : placement.rows) = out.owned;
    placement.may_overlap = out.may_overlap;
    const Layout* in = table || instruction.inputs.empty()
                           ? nullptr
                           : &program_.value(instruction.inputs[0]).layout;
    for (std::size_t axis = 0; axis < out.placements.size(); ++axis) {
      const bool partial = out.placements[axis].is_partial();
      if (partial) placement.cuts.push_back({static_cast<int>(axis), table});
      if (out.placements[axis] == Placement::sharded(Dim::features)) {
        placement.cuts.push_back({static_cast<int>(axis), !table});
      }
      if (partial && in != nullptr) placement.cols = in->owned;
      if (partial && table) {
        for (int rank = 0; rank < program_.mesh.ranks(); ++rank) {
          const int at = program_.mesh.coordinates(rank)[axis];
          placement.rows.push_back(
              Partition::balanced(module.out, program_.mesh.axes[axis].size).of(at));
        }
      }
    }
  }

  const Registry& ops_;
  const std::map<std::string, Layout, std::less<>>& layouts_;
  Program program_;
  std::map<std::string, int, std::less<>> values_;
};

}  // namespace

Program candidate_program(const Model& model, const Registry& ops, const Mesh& mesh,
                          const std::map<std::string, Layout, std::less<>>& layouts) {
  return CandidateProgram(model, ops, mesh, layouts).build();
}

}  // namespace shardcheck
