// SPDX-License-Identifier: Apache-2.0
// Which op made which tap of a candidate: the model's graph, with placements as the candidate declares them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/candidate.hpp"
#include "harness/candidate_names.hpp"
#include "sharded/op.hpp"
#include "sharded/placement_rules.hpp"

namespace shardcheck {
namespace {

constexpr int kMostSteps = 16;  // more than any point of a plan has

class CandidateProgram {
 public:
  CandidateProgram(const Model& model, const Registry& ops, const Mesh& mesh,
                   const std::map<std::string, Layout, std::less<>>& layouts, const TableRows& rows)
      : ops_(ops), layouts_(layouts), table_rows_(rows) {
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
    if (owns) collect_input(node);
    if (owns && op.name() == "rms_norm" && layout(node.module + ".stat") != nullptr) {
      add_statistic(node);
      Node apply = node;
      apply.inputs.push_back(node.module + ".stat");
      return add_op(apply, ops_.find("rms_apply"), module, true);
    }
    add_op(node, op, module, owns);
  }

  /// The sum of squares of a norm whose features are cut, as far as the candidate shows how it came about.
  void add_statistic(const Node& norm) {
    const std::string name = norm.module + ".stat", partial = name + ".partial";
    const int x = values_.at(norm.inputs[0]);
    Layout sum = program_.value(x).layout;
    ModulePlacement& weight = program_.plan.weights[norm.module];
    weight.rows = std::exchange(sum.owned, {});
    weight.may_overlap = std::exchange(sum.may_overlap, false);
    sum.features = 1;
    for (std::size_t axis = 0; axis < sum.placements.size(); ++axis) {
      if (!sum.placements[axis].cuts_features()) continue;
      sum.placements[axis] = Placement::partial();
      weight.cuts.push_back({static_cast<int>(axis), true});
    }
    Value own{partial, layout(partial) != nullptr ? *layout(partial) : sum};
    own.dtype = ValueDType::accumulate;
    Instruction instruction;
    instruction.op = &ops_.find("rms_statistic");
    instruction.module = norm.module;
    instruction.site = partial;
    instruction.inputs = {x};
    instruction.outputs = {add(std::move(own))};
    program_.instructions[Phase::prefill].push_back(instruction);
    int result = instruction.outputs[0];
    for (int i = 0; i <= last_reduced(name); ++i) {
      if (layout(reduced_name(name, i)) != nullptr)
        result = add_stage(norm.module, {reduced_name(name, i), *layout(reduced_name(name, i))}, result, false);
    }
    values_[name] = add_stage(norm.module, {name, *layout(name)}, result, false);
  }

  void add_op(const Node& node, const Op& op, const Module* module, bool owns) {
    Instruction instruction;
    instruction.op = &op;
    instruction.module = node.module;
    instruction.attributes = node.attributes;
    std::vector<std::int64_t> features;
    for (const std::string& input : node.inputs) {
      // What was collected for modules is for modules: a residual adds what was produced.
      const auto produced = produced_.find(input);
      const bool apart = !owns && produced != produced_.end();
      instruction.inputs.push_back(apart ? produced->second : values_.at(input));
      features.push_back(program_.value(instruction.inputs.back()).layout.features);
    }
    const std::vector<std::int64_t> sizes = op.shapes(node, program_.config, module, features);
    const Placed whole{node.outputs[0], layout_or(node.outputs[0], sizes[0])};
    const std::vector<Placed> stages = owns ? output_stages(
                                                  *module,
                                                  program_.value(instruction.inputs[0]).layout, whole)
                                            : std::vector<Placed>{whole};
    for (std::size_t i = 0; i < node.outputs.size(); ++i) {
      const Placed placed = i == 0 ? stages.front()
                                   : Placed{node.outputs[i], layout_or(node.outputs[i], sizes[i])};
      Value out{placed.name, placed.layout};
      out.dtype = dtype_of_tap(out.name, out.layout);
      out.rows = op.rows();
      if (out.rows == ValueRows::cache)
        out.window = static_cast<std::int64_t>(node.attributes.at("window"));
      instruction.outputs.push_back(add(std::move(out)));
      values_[node.outputs[i]] = instruction.outputs.back();
    }
    instruction.site = stages.front().name;
    const int bias = owns ? bias_stage(*module, stages) : -1;
    instruction.adds_bias = bias == 0;
    if (owns && module->kind != ModuleKind::norm) place_weight(*module, instruction);
    program_.instructions[Phase::prefill].push_back(instruction);
    for (std::size_t i = 1; i < stages.size(); ++i) {
      values_[node.outputs[0]] = add_stage(node.module, stages[i], values_.at(node.outputs[0]),
                                           bias == static_cast<int>(i));
    }
  }

  /// A value and where it is.
  struct Placed {
    std::string name;
    Layout layout;
  };

  Layout layout_or(const std::string& name, std::int64_t features) const {
    return layout(name) != nullptr ? *layout(name) : Layout::replicated(features, program_.mesh);
  }

  /// "X.in.0", "X.in.1", ..., "X.in", as far as the candidate shows them: its input on the way to X, for all that read it.
  void collect_input(const Node& node) {
    std::vector<std::string> names;
    for (int i = 0; layout(fmt::format("{}.in.{}", node.module, i)) != nullptr; ++i)
      names.push_back(fmt::format("{}.in.{}", node.module, i));
    if (layout(node.module + ".in") != nullptr) names.push_back(node.module + ".in");
    for (const std::string& name : names) {
      int& current = values_.at(node.inputs[0]);
      produced_.emplace(node.inputs[0], current);
      current = add_stage(node.module, {name, *layout(name)}, current, false);
    }
  }

  /// What the op itself gives, then the stages that the candidate shows, then the module's output. A linear whose input
  /// is cut along the features that it sums over gives partial sums, shown or not.
  std::vector<Placed> output_stages(const Module& module, const Layout& input,
                                    const Placed& output) const {
    std::vector<Placed> stages{output};
    const std::string partial = module.path + ".partial";
    // From the back: of a stage that isn't shown but whose number says that it exists, the next one's placement is known.
    for (int i = last_reduced(module.path); i >= 0; --i) {
      const std::string name = reduced_name(module.path, i);
      const Layout& known = layout(name) != nullptr ? *layout(name) : stages.front().layout;
      stages.insert(stages.begin(), {name, known});
    }
    const bool shows_partial = layout(partial) != nullptr;
    if (shows_partial) stages.insert(stages.begin(), {partial, *layout(partial)});
    if (module.kind != ModuleKind::linear) return stages;
    if (!shows_partial) {
      Layout sum = stages.front().layout;
      for (std::size_t axis = 0; axis < sum.placements.size(); ++axis) {
        const Placement cut = Placement::sharded(Dim::features);
        if (!(input.placements[axis] == cut) || sum.placements[axis] == cut) continue;
        std::erase(sum.row_axes, static_cast<int>(axis));
        sum.placements[axis] = Placement::partial();
      }
      if (!(sum == stages.front().layout)) stages.insert(stages.begin(), {partial, sum});
    }
    if (module.has_bias && added_apart(stages)) make_room_for_bias(module, stages);
    return stages;
  }

  static std::string reduced_name(const std::string& module, int number) {
    return number == 0 ? module + ".reduced" : fmt::format("{}.reduced.{}", module, number);
  }
  /// The largest number of a stage that the candidate shows; -1 if it shows none.
  int last_reduced(const std::string& module) const {
    int last = -1;
    for (int i = 0; i < kMostSteps; ++i) {
      if (layout(reduced_name(module, i)) != nullptr) last = i;
    }
    return last;
  }

  /// Partial sums get their bias once they are whole; so does a value that is shown as reduced.
  static bool added_apart(const std::vector<Placed>& stages) {
    if (stages.back().layout.any_partial()) return false;
    return stages.front().layout.any_partial() ||
           stage_of(stages.front().name).kind == Stage::Kind::reduced;
  }
  static std::size_t first_whole(const std::vector<Placed>& stages) {
    std::size_t i = 0;
    while (i + 1 < stages.size() && stages[i].layout.any_partial()) ++i;
    return i;
  }

  /// A stage between the sum and what follows, if the candidate shows none: the bias doesn't change a placement.
  void make_room_for_bias(const Module& module, std::vector<Placed>& stages) const {
    const std::size_t whole = first_whole(stages);
    if (whole + 1 < stages.size() && stages[whole + 1].layout == stages[whole].layout) return;
    const std::string name = reduced_name(module.path, last_reduced(module.path) + 1);
    // The last stage has the bias; of the others the one that is whole first is what the bias is added to.
    const bool last = whole + 1 == stages.size();
    const Placed hidden{name, stages[whole].layout};
    stages.insert(stages.begin() + static_cast<std::ptrdiff_t>(last ? whole : whole + 1), hidden);
  }

  /// Which stage the bias makes: 0 is the linear itself, -1 none.
  static int bias_stage(const Module& module, const std::vector<Placed>& stages) {
    if (module.kind != ModuleKind::linear || !module.has_bias) return -1;
    return added_apart(stages) ? static_cast<int>(first_whole(stages)) + 1 : 0;
  }

  /// The next stage of a value: its bias, or the collective that takes one placement to the other.
  int add_stage(const std::string& module, const Placed& stage, int input, bool is_bias) {
    Instruction instruction;
    instruction.module = module;
    instruction.inputs = {input};
    instruction.site = stage.name;
    Value out{stage.name, stage.layout};
    out.dtype = dtype_of_tap(out.name, out.layout);
    out.rows = program_.value(input).rows;
    out.window = program_.value(input).window;
    instruction.outputs = {add(std::move(out))};
    const int result = instruction.outputs[0];
    bool known = true;
    if (is_bias) {
      instruction.op = &ops_.find("bias");
    } else {
      known = collective_between(program_.value(input).layout, stage.layout, instruction);
    }
    if (known) program_.instructions[Phase::prefill].push_back(instruction);
    return result;
  }

  /// The one collective that takes one placement to the other, over all axes where they differ. False if it takes several
  /// kinds: then nothing can be said about the value from its source alone.
  bool collective_between(const Layout& before, const Layout& after, Instruction& instruction) {
    using Kind = CollectiveStep::Kind;
    CollectiveStep& step = instruction.collective;
    std::optional<Kind> kind;
    for (std::size_t axis = 0; axis < before.placements.size(); ++axis) {
      const Placement& from = before.placements[axis];
      const Placement& to = after.placements[axis];
      if (from == to) continue;
      instruction.axes.push_back(static_cast<int>(axis));
      step.axes.push_back(program_.mesh.axes[axis].name);
      const bool cuts = to.kind == Placement::Kind::S, cut = from.kind == Placement::Kind::S;
      const Dim dim = cuts ? to.dim : from.dim;
      step.dim = dim == Dim::tokens      ? PlanDim::tokens
                 : dim == Dim::sequences ? PlanDim::sequence
                                         : PlanDim::features;
      if (from.kind == Placement::Kind::P_max) step.op = ReduceOp::max;
      const Kind here = from.is_partial() ? (cuts ? Kind::reduce_scatter : Kind::all_reduce)
                        : cut && cuts     ? Kind::all_to_all
                        : cut             ? Kind::all_gather
                                          : Kind::slice;
      if (kind && *kind != here) return false;
      kind = here;
    }
    // Placed alike: the same value under another name.
    step.kind = kind.value_or(Kind::broadcast);
    return true;
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
    }
    if (table && out.any_partial()) placement.rows = table_rows(module, out);
  }

  /// Where several axes cut the table, the first is the outer cut.
  std::vector<Ranges> table_rows(const Module& module, const Layout& out) const {
    const auto known = table_rows_.find(module.path);
    if (known != table_rows_.end()) return known->second;
    std::vector<Ranges> rows;
    for (int rank = 0; rank < program_.mesh.ranks(); ++rank) {
      Ranges mine{{0, module.out}};
      for (std::size_t axis = 0; axis < out.placements.size(); ++axis) {
        if (!out.placements[axis].is_partial()) continue;
        const Partition even = Partition::balanced(total(mine), program_.mesh.axes[axis].size);
        mine = compose(mine, even.of(program_.mesh.coordinates(rank)[axis]));
      }
      rows.push_back(std::move(mine));
    }
    return rows;
  }

  const Registry& ops_;
  const std::map<std::string, Layout, std::less<>>& layouts_;
  const TableRows& table_rows_;
  Program program_;
  std::map<std::string, int, std::less<>> values_;
  std::map<std::string, int, std::less<>> produced_;
};

}  // namespace

Program candidate_program(const Model& model, const Registry& ops, const Mesh& mesh,
                          const std::map<std::string, Layout, std::less<>>& layouts,
                          const TableRows& rows) {
  return CandidateProgram(model, ops, mesh, layouts, rows).build();
}

}  // namespace shardcheck
