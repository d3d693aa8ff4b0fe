// SPDX-License-Identifier: Apache-2.0
#include "harness/lint_waste.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "sharded/op.hpp"
#include "sharded/step_rules.hpp"

namespace shardcheck {
namespace {

using Kind = CollectiveStep::Kind;

constexpr std::int64_t kElementBytes = 2;  // bf16, fp16

bool is_step(const Instruction& instruction, Kind kind) {
  return instruction.op == nullptr && instruction.collective.kind == kind;
}
bool moves_only(const Instruction& instruction) {
  return is_step(instruction, Kind::all_gather) || is_step(instruction, Kind::slice) ||
         is_step(instruction, Kind::all_to_all);
}

class Search {
 public:
  explicit Search(const Program& program) : program_(program) {
    for (const Module& module : program.modules) modules_.emplace(module.path, &module);
  }

  std::vector<WastedExchange> run() {
    for (const auto& [phase, instructions] : program_.instructions) search(phase, instructions);
    return std::move(found_);
  }

 private:
  void search(Phase phase, const std::vector<Instruction>& instructions) {
    producer_.clear();
    readers_.clear();
    result_ = program_.result.at(phase);
    bool steps = false;
    for (const Instruction& instruction : instructions) {
      steps = steps || instruction.op == nullptr;
      for (const int output : instruction.outputs) producer_[output] = &instruction;
      for (const int input : instruction.inputs) readers_[input].push_back(&instruction);
    }
    if (!steps) return;
    std::map<std::pair<int, std::string>, const Instruction*> gathers;
    for (const Instruction& instruction : instructions) {
      if (instruction.op != nullptr || undone_or_needless(instruction)) continue;
      const std::string step = to_string(instruction.collective);
      if (is_step(instruction, Kind::all_gather)) {
        const auto [first, fresh] = gathers.emplace(std::pair(instruction.inputs[0], step),
                                                    &instruction);
        if (!fresh) {
          report("redundant_collective", instruction, step, 1,
                 fmt::format("{} has gathered the same value already: read that", first->second->site));
          continue;
        }
        check_sliced_again(instruction);
      }
      if (is_step(instruction, Kind::all_reduce)) check_reduced_whole(instruction);
    }
  }

  const Layout& layout(int value) const { return program_.value(value).layout; }

  /// A broadcast of what every rank has, or the second of two steps that cancel.
  bool undone_or_needless(const Instruction& second) {
    const Layout& between = layout(second.inputs[0]);
    if (is_step(second, Kind::broadcast)) {
      const bool whole = std::all_of(second.axes.begin(), second.axes.end(), [&](int axis) {
        return between.placements[static_cast<std::size_t>(axis)].kind == Placement::Kind::R;
      });
      if (whole) {
        report("redundant_collective", second, to_string(second.collective), 1,
               "every rank holds this value already; leave the broadcast out");
      }
      return whole;
    }
    const auto made = producer_.find(second.inputs[0]);
    if (!moves_only(second) || made == producer_.end() || !moves_only(*made->second) ||
        settled_.contains(made->second)) {
      return false;
    }
    const Instruction& first = *made->second;
    const Layout& before = layout(first.inputs[0]);
    if (before.any_partial() || !(before == layout(second.outputs[0]))) return false;
    // Others may read what lies between: then the second step alone is for nothing.
    const bool both = readers_[second.inputs[0]].size() == 1;
    const std::int64_t calls = (both && first.collective.kind != Kind::slice ? 1 : 0) +
                               (second.collective.kind != Kind::slice ? 1 : 0);
    if (calls == 0) return false;
    report("redundant_collective", second,
           both ? fmt::format("{}, {}", to_string(first.collective), to_string(second.collective))
                : to_string(second.collective),
           calls,
           both ? "the second step undoes the first; leave both out"
                : "the step before it made this of the value that comes out: read that");
    settled_.insert(&second);
    return true;
  }

  /// A gather whose every reader takes its own part of it again.
  void check_sliced_again(const Instruction& gather) {
    std::vector<const Instruction*> slices;
    if (!sliced_later(gather.outputs[0], layout(gather.inputs[0]), gather, slices) || slices.empty())
      return;
    // Where they follow at once, the pair is reported.
    if (std::all_of(slices.begin(), slices.end(),
                    [&](const Instruction* s) { return s->inputs[0] == gather.outputs[0]; })) {
      return;
    }
    report("redundant_collective", gather,
           fmt::format("{}, {}", to_string(gather.collective), to_string(slices[0]->collective)), 1,
           fmt::format("all that is made of it is sliced again at {}: what lies between works on "
                       "the parts as well",
                       slices[0]->site));
  }
  /// Whether everything that reads this value could read it placed like `parts`, up to steps that slice it so.
  bool sliced_later(int value, const Layout& parts, const Instruction& gather,
                    std::vector<const Instruction*>& slices) {
    const auto readers = readers_.find(value);
    if (value == result_ || readers == readers_.end()) return false;
    for (const Instruction* reader : readers->second) {
      if (reader->op == nullptr) {
        if (!is_step(*reader, Kind::slice) || !(layout(reader->outputs[0]) == parts)) return false;
        slices.push_back(reader);
        continue;
      }
      const std::vector<Layout> outputs = placed_with_parts(*reader, value, parts, gather);
      if (outputs.empty()) return false;
      for (std::size_t i = 0; i < reader->outputs.size(); ++i)
        if (!sliced_later(reader->outputs[i], outputs[i], gather, slices)) return false;
    }
    return true;
  }

  /// Layouts of an op's outputs if it read parts; operands that are whole are sliced for it where it asks for that.
  std::vector<Layout> placed_with_parts(const Instruction& reader, int value, const Layout& parts,
                                        const Instruction& gather) const {
    const auto module = modules_.find(reader.module);
    // Only an op whose output is the module's own, or on its way to it, uses the module's weight.
    const bool owns = module != modules_.end() &&
                      (reader.site == reader.module ||
                       reader.site.starts_with(reader.module + ".partial") ||
                       reader.site.starts_with(reader.module + ".reduced"));
    const Node node{
        std::string(reader.op->name()), reader.module, {}, {reader.site}, reader.attributes};
    for (const bool slice_others : {false, true}) {
      PlaceQuery query{node,
                       program_.config,
                       program_.mesh,
                       owns ? module->second : nullptr,
                       owns ? &program_.plan.placement(reader.module) : nullptr,
                       {}};
      for (const int input : reader.inputs) {
        const bool replaced = input == value || (slice_others && layout(input) == layout(value));
        query.inputs.push_back(replaced ? parts : layout(input));
      }
      Placed placed = reader.op->place(query);
      if (!placed.violations.empty()) continue;
      const Placement& wanted = parts.placements[static_cast<std::size_t>(gather.axes[0])];
      for (std::size_t i = 0; i < placed.outputs.size(); ++i) {
        if (!(placed.outputs[i].placements[static_cast<std::size_t>(gather.axes[0])] == wanted))
          return {};
        placed.outputs[i].features = layout(reader.outputs[i]).features;
      }
      return placed.outputs;
    }
    return {};
  }

  /// An all_reduce of which every rank keeps a part: a reduce_scatter moves half as much.
  void check_reduced_whole(const Instruction& reduction) {
    const auto readers = readers_.find(reduction.outputs[0]);
    if (readers == readers_.end() || reduction.outputs[0] == result_ ||
        reduction.collective.op != ReduceOp::sum)
      return;
    const CollectiveStep& first = readers->second[0]->collective;
    for (const Instruction* reader : readers->second) {
      if (!is_step(*reader, Kind::slice) || reader->axes != reduction.axes ||
          !(reader->collective == first))
        return;
    }
    CollectiveStep instead = reduction.collective;
    instead.kind = Kind::reduce_scatter;
    instead.dim = first.dim;
    report("all_reduce_then_slice", reduction,
           fmt::format("{}, {}", to_string(reduction.collective), to_string(first)), 1,
           fmt::format("each rank keeps a part of the sum: {} moves half as much", to_string(instead)));
  }

  void report(const std::string& rule, const Instruction& wasted, const std::string& op,
              std::int64_t calls, const std::string& sentence) {
    const auto axis = static_cast<std::size_t>(wasted.axes.front());
    const std::string& tap = wasted.site;
    if (!known_.insert(fmt::format("{} {} {}", rule, tap, op)).second) return;
    const Layout& input = layout(wasted.inputs[0]);
    const std::string met = to_string(input.placements[axis]);
    found_.push_back({{rule, op, tap, program_.mesh.axes[axis].name, met, met, "", sentence},
                      calls * input.features * kElementBytes});
  }

  const Program& program_;
  std::unordered_map<std::string_view, const Module*> modules_;
  std::unordered_map<int, const Instruction*> producer_;
  std::unordered_map<int, std::vector<const Instruction*>> readers_;
  std::set<const Instruction*> settled_;
  int result_ = -1;
  std::set<std::string> known_;
  std::vector<WastedExchange> found_;
};

}  // namespace

std::vector<WastedExchange> wasted_exchanges(const Program& program) {
  return Search(program).run();
}

}  // namespace shardcheck
