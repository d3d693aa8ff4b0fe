// SPDX-License-Identifier: Apache-2.0
#include "harness/judge_work.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace shardcheck {
namespace {

bool same_values(const Program& program, const std::vector<int>& a, const std::vector<int>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](int i, int j) {
    const Value &x = program.value(i), &y = program.value(j);
    return i == j || (x.name == y.name && x.layout == y.layout && x.dtype == y.dtype &&
                      x.rows == y.rows && x.window == y.window);
  });
}

bool same_work(const Program& program, const Instruction& a, const Instruction& b) {
  return a.op == b.op && a.module == b.module && a.collective == b.collective && a.axes == b.axes &&
         a.adds_bias == b.adds_bias && a.attributes == b.attributes &&
         same_values(program, a.inputs, b.inputs) && same_values(program, a.outputs, b.outputs);
}

std::set<int> produced_values(const Program& program) {
  std::set<int> produced;
  for (const auto& [phase, instructions] : program.instructions) {
    for (const Instruction& i : instructions) produced.insert(i.outputs.begin(), i.outputs.end());
  }
  return produced;
}

bool has_part(const TapValue& tap) {
  return std::any_of(tap.ranks.begin(), tap.ranks.end(),
                     [](const HostTensor& part) { return !part.shape().empty(); });
}

// How many steps there are to judge. A run that ended inside a step has none of the steps after it: the tap that it
// ended at is wrong, not the first one of the step that never came.
std::size_t judged_steps(const TapRun& run) {
  std::size_t reached = run.steps.size();
  while (reached > 0 && std::none_of(run.steps[reached - 1].values.begin(),
                                     run.steps[reached - 1].values.end(), has_part)) {
    --reached;
  }
  if (reached == 0) return run.steps.size();
  const std::vector<TapValue>& last = run.steps[reached - 1].values;
  return std::all_of(last.begin(), last.end(), has_part) ? run.steps.size() : reached;
}

}  // namespace

std::int64_t Work::tokens() const {
  return std::accumulate(
      steps.begin(), steps.end(), std::int64_t{0},
      [this](std::int64_t sum, std::size_t s) { return sum + run->steps[s].step.tokens(); });
}

std::int64_t Work::elements() const {
  std::int64_t features = 0;
  for (const int output : instruction->outputs) features += program->value(output).layout.features;
  return tokens() * features;
}

std::vector<std::size_t> Work::history() const {
  std::vector<std::size_t> all(steps.empty() ? 0 : steps.back() + 1);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

Ranges Work::weight_rows(int rank) const {
  const Module* module = program->find_module(instruction->module);
  if (module == nullptr) return {};
  const Layout& out = program->value(instruction->outputs[0]).layout;
  if (!out.any_partial()) return {{0, module->out}};
  std::vector<int> summed;
  for (std::size_t axis = 0; axis < out.placements.size(); ++axis) {
    if (out.placements[axis].is_partial()) summed.push_back(static_cast<int>(axis));
  }
  Ranges rows = program->plan.rows_of(*module, rank);
  if (!program->plan.placement(module->path).may_overlap) return rows;
  for (const int member : run->mesh.group(rank, summed)) {
    if (member >= rank) continue;
    for (const Range& theirs : program->plan.rows_of(*module, member)) rows = without(rows, theirs);
  }
  return rows;
}

std::vector<Work> work_of(const Program& program, const TapRun& run) {
  const std::set<int> produced = produced_values(program);
  const std::size_t judged = judged_steps(run);
  std::vector<Work> works;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    std::vector<std::size_t> steps;
    for (std::size_t s = 0; s < judged; ++s) {
      if (run.steps[s].step.phase == phase) steps.push_back(s);
    }
    if (steps.empty()) continue;
    // Both phases come from one graph, so their common instructions are in the same order: merge the lists.
    std::size_t next = 0;
    for (const Instruction& instruction : program.instructions.at(phase)) {
      const auto known = std::find_if(
          works.begin() + static_cast<std::ptrdiff_t>(next), works.end(),
          [&](const Work& w) { return same_work(program, *w.instruction, instruction); });
      if (known != works.end()) {
        known->steps.insert(known->steps.end(), steps.begin(), steps.end());
        std::sort(known->steps.begin(), known->steps.end());
        next = static_cast<std::size_t>(known - works.begin()) + 1;
        continue;
      }
      Work work{&program, &run, &instruction, steps, {}, 0};
      std::copy_if(instruction.inputs.begin(), instruction.inputs.end(),
                   std::back_inserter(work.inputs),
                   [&](int input) { return produced.contains(input); });
      works.insert(works.begin() + static_cast<std::ptrdiff_t>(next++), std::move(work));
    }
  }
  int order = 0;
  for (Work& work : works) {
    work.order = order;
    order += static_cast<int>(work.instruction->outputs.size());
  }
  return works;
}

OutputSet::OutputSet(const Work& work, bool may_be_missing) : work_(&work) {
  for (const int output : work.instruction->outputs)
    readers_.emplace_back(*work.run, work.steps, work.program->value(output));
  if (may_be_missing) return;
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    if (readers_[i].present()) continue;
    for (int rank = 0; rank < work.run->mesh.ranks(); ++rank) {
      TapScore score = blank(readers_[i], i, rank);
      score.problem = readers_[i].defect(rank);
      scores_.push_back(std::move(score));
    }
  }
}

OutputSet::OutputSet(const Work& work, const Value& output) : work_(&work) {
  readers_.emplace_back(*work.run, work.steps, output);
}

const TapReader& OutputSet::reader(std::size_t output) const { return readers_[output]; }

bool OutputSet::empty() const {
  return std::none_of(readers_.begin(), readers_.end(),
                      [](const TapReader& reader) { return reader.present(); });
}

TapScore OutputSet::blank(const TapReader& reader, std::size_t output, int rank) const {
  TapScore score;
  score.tap = reader.name();
  score.order = work_->order + static_cast<int>(output);
  score.rank = score.worst.rank = rank;
  return score;
}

std::vector<Comparison> OutputSet::comparisons(std::size_t output, const std::vector<int>& ranks,
                                               bool rounds_once) const {
  std::vector<Comparison> found;
  const TapReader& reader = readers_[output];
  if (!reader.present()) return found;
  std::map<std::vector<const void*>, std::vector<std::size_t>> by_bytes;
  const auto same_part = [&](int a, int b) {
    if (reader.layout().feature_ranges(a) != reader.layout().feature_ranges(b)) return false;
    for (std::size_t s = 0; s < reader.steps(); ++s) {
      if (reader.row_ranges(s, a) != reader.row_ranges(s, b)) return false;
    }
    return true;
  };
  for (const int rank : ranks) {
    const int order = work_->order + static_cast<int>(output);
    if (!reader.defect(rank).empty()) {
      found.emplace_back(reader, order, rank, rounds_once);
      continue;
    }
    std::vector<std::size_t>& candidates = by_bytes[reader.key({rank})];
    const auto same = std::find_if(candidates.begin(), candidates.end(),
                                   [&](std::size_t i) { return same_part(found[i].rank(), rank); });
    if (same != candidates.end()) {
      found[*same].add_rank(rank);
    } else {
      candidates.push_back(found.size());
      found.emplace_back(reader, order, rank, rounds_once);
    }
  }
  return found;
}

void OutputSet::take(const std::vector<Comparison>& done) {
  for (const Comparison& comparison : done) {
    const std::vector<TapScore> scores = comparison.scores();
    scores_.insert(scores_.end(), scores.begin(), scores.end());
  }
}

void OutputSet::fail(int rank, const std::string& problem) {
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    if (!readers_[i].present()) continue;
    TapScore score = blank(readers_[i], i, rank);
    score.problem = problem;
    scores_.push_back(std::move(score));
  }
}

void OutputSet::fail_all(const std::string& problem, bool unchecked) {
  const std::size_t before = scores_.size();
  for (int rank = 0; rank < work_->run->mesh.ranks(); ++rank) fail(rank, problem);
  for (std::size_t i = before; i < scores_.size(); ++i) scores_[i].unchecked = unchecked;
}

std::vector<TapScore> OutputSet::scores() const {
  std::vector<TapScore> sorted = scores_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const TapScore& a, const TapScore& b) {
    return a.order != b.order ? a.order < b.order : a.rank < b.rank;
  });
  return sorted;
}

void compare_all(const LocalValue& value, std::vector<Comparison>& comparisons) {
  for (Comparison& comparison : comparisons) {
    const TapReader& reader = comparison.reader();
    if (!comparison.comparable()) continue;
    if (!value.problem.empty()) {
      comparison.fail(value.problem);
    } else if (value.y.rows() != reader.rows() || value.y.cols() != reader.layout().features) {
      comparison.fail(fmt::format("is [{}, {}] as a whole, its recomputation is [{}, {}]",
                                  reader.rows(), reader.layout().features, value.y.rows(),
                                  value.y.cols()));
    } else {
      const bool exact = value.budget.rows() == 0;
      comparison.compare(0, value.y.cols(), value.y.data(), value.y.cols(),
                         exact ? nullptr : value.budget.data(), value.budget.cols());
    }
  }
}

}  // namespace shardcheck
