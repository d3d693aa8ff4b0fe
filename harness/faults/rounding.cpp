// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/rounding.hpp"

#include <algorithm>
#include <cmath>

namespace shardcheck {
namespace {

/// correct + (faulty_f64 - correct_f64), rounded once to correct's format; an empty tensor where that makes no sense.
HostTensor with_effect(const HostTensor& correct, const HostTensor& correct_f64,
                       const HostTensor& faulty_f64) {
  if (correct.shape() != correct_f64.shape() || correct.shape() != faulty_f64.shape()) return {};
  std::vector<double> values = correct.to_f64();
  const std::vector<double> right = correct_f64.to_f64(), wrong = faulty_f64.to_f64();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(wrong[i])) return {};
    values[i] += wrong[i] - right[i];
  }
  return round_to(correct.dtype(), correct.shape(), values);
}

}  // namespace

bool effect_is_below_rounding(const Model& model, const EffectQuestion& question,
                              const JudgeOptions& judge) {
  const std::string& tap = question.first->tap;
  TapRun probe = *question.correct;
  for (std::size_t s = 0; s < probe.steps.size(); ++s) {
    const TapValue* right = question.correct_f64->steps[s].find(tap);
    const TapValue* wrong = question.faulty_f64->steps[s].find(tap);
    const auto found = probe.steps[s].index.find(tap);
    if (found == probe.steps[s].index.end() || right == nullptr || wrong == nullptr) return false;
    TapValue& value = probe.steps[s].values[found->second];
    bool begins_here = false;
    for (const int rank : question.first->ranks) {
      const auto r = static_cast<std::size_t>(rank);
      begins_here = begins_here || !right->ranks[r].bitwise_equal(wrong->ranks[r]);
      value.ranks[r] = with_effect(value.ranks[r], right->ranks[r], wrong->ranks[r]);
      if (value.ranks[r].shape().empty()) return false;
    }
    // Later steps read what this one has spoilt: their difference is no longer the fault's own.
    if (begins_here) break;
  }
  const JudgeCell cell{question.program, &probe};
  const std::vector<TapScore> scores = judge_local(model, {&cell, 1}, judge)[0];
  return std::all_of(scores.begin(), scores.end(),
                     [&](const TapScore& score) { return score.tap != tap || score.passed(); });
}

}  // namespace shardcheck
