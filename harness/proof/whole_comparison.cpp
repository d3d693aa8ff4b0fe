// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/whole_comparison.hpp"

#include <algorithm>
#include <map>

#include "harness/proof/wrong_shares.hpp"

namespace shardcheck {
namespace {

bool lacks_a_part(const TapValue& tap) {
  return std::any_of(tap.ranks.begin(), tap.ranks.end(),
                     [](const HostTensor& part) { return part.shape().empty(); });
}

/// Walks both runs in program order.
class RunsComparison {
 public:
  RunsComparison(const ProofRun& sharded, const ProofRun& whole, WeightStore& weights,
                 const ResolvedPlan& plan, Device& device)
      : program_(*sharded.program),
        sharded_(sharded),
        whole_(whole),
        weights_(weights),
        plan_(plan),
        device_(device) {}

  RunComparison compare() {
    const std::vector<StepTaps>& steps = sharded_.taps.steps;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      steps_.push_back(&steps[s].step);
      for (const Instruction& instruction : program_.instructions.at(steps[s].step.phase)) {
        for (const int output : instruction.outputs) {
          const Value& value = program_.value(output);
          if (sharded_.ended && lacks_a_part(*steps[s].find(value.name))) {
            result_.first = ended(s, value.name);
            return std::move(result_);
          }
          ++result_.values;
          result_.first = difference(s, output);
          if (!result_.first) continue;
          add_later_steps();
          return std::move(result_);
        }
      }
    }
    if (sharded_.ended) result_.first = ended(steps.size() - 1, "");
    return std::move(result_);
  }

 private:
  RunDifference ended(std::size_t step, const std::string& tap) const {
    const RunEnd& end = *sharded_.ended;
    return {step, -1, end.site.empty() ? tap : end.site, end.ranks, -1, -1, end.message};
  }

  const Counterparts& counterparts(Phase phase) {
    return counterparts_.try_emplace(phase, program_, *whole_.program, phase).first->second;
  }

  /// In the last of steps_, which is step `s` of the run.
  std::optional<RunDifference> difference(std::size_t s, int output) {
    const Value& value = program_.value(output);
    const Counterparts& known = counterparts(steps_.back()->phase);
    const Counterpart& counterpart = known.of(output);
    HostTensor expected;
    if (!counterpart.tap.empty())
      expected = expected_value(counterpart, whole_.taps.steps[s], weights_);
    const HostTensor* const wanted = counterpart.tap.empty() ? nullptr : &expected;
    const std::vector<HostTensor>& parts = sharded_.taps.steps[s].find(value.name)->ranks;
    std::optional<RunDifference> found = compare_value(value, parts, program_.mesh, steps_, wanted);
    if (!found) return found;
    found->step = s;
    found->value = output;
    if (value.layout.any_partial() && found->problem.empty()) {
      std::vector<int> wrong = wrong_shares(*found, known, steps_, sharded_, whole_, weights_,
                                            plan_, device_);
      if (!wrong.empty()) found->ranks = std::move(wrong);
    }
    if (found->row < 0) name_edited_ranks(known.producer(output), *found);
    return found;
  }

  /// Of a value that isn't whole: the ranks that don't hold what the plan gives them, if there are some.
  void name_edited_ranks(const Instruction* made, RunDifference& found) const {
    const Module* module = made != nullptr ? program_.find_module(made->module) : nullptr;
    if (module == nullptr) return;
    std::vector<int> edited;
    for (const int rank : found.ranks) {
      if (plan_.rows_of(*module, rank) != program_.plan.rows_of(*module, rank) ||
          plan_.cols_of(*module, rank) != program_.plan.cols_of(*module, rank)) {
        edited.push_back(rank);
      }
    }
    if (!edited.empty()) found.ranks = std::move(edited);
  }

  /// A rank may be right in the first wrong step by chance of what it was fed. Nothing that is wrong in one step
  /// reaches the same value of a later one: caches hold what lies before it.
  void add_later_steps() {
    RunDifference& first = *result_.first;
    if (!first.problem.empty()) return;
    const std::vector<StepTaps>& steps = sharded_.taps.steps;
    for (std::size_t s = first.step + 1; s < steps.size(); ++s) {
      steps_.push_back(&steps[s].step);
      for (const Instruction& instruction : program_.instructions.at(steps[s].step.phase)) {
        for (const int output : instruction.outputs) {
          if (program_.value(output).name != first.tap || lacks_a_part(*steps[s].find(first.tap)))
            continue;
          const std::optional<RunDifference> later = difference(s, output);
          if (later && later->problem.empty())
            first.ranks.insert(first.ranks.end(), later->ranks.begin(), later->ranks.end());
        }
      }
    }
    std::sort(first.ranks.begin(), first.ranks.end());
    first.ranks.erase(std::unique(first.ranks.begin(), first.ranks.end()), first.ranks.end());
  }

  const Program& program_;
  const ProofRun& sharded_;
  const ProofRun& whole_;
  WeightStore& weights_;
  const ResolvedPlan& plan_;
  Device& device_;
  std::map<Phase, Counterparts> counterparts_;
  std::vector<const Step*> steps_;  // so far
  RunComparison result_;
};

}  // namespace

RunComparison compare_runs(const ProofRun& sharded, const ProofRun& whole, WeightStore& weights,
                           const ResolvedPlan& plan, Device& device) {
  return RunsComparison(sharded, whole, weights, plan, device).compare();
}

}  // namespace shardcheck
