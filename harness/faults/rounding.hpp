// SPDX-License-Identifier: Apache-2.0
// Whether a fault is too small for a format: what it does in f64, added to the correct run in that format at the value
// where it begins, passes the limits there.
#pragma once

#include "harness/faults/fault.hpp"
#include "harness/judge.hpp"
#include "harness/run.hpp"

namespace shardcheck {

struct EffectQuestion {
  const Program* program = nullptr;     // the correct one
  const WrongTap* first = nullptr;      // where the fault begins
  const TapRun* correct = nullptr;      // in the format that is asked about
  const TapRun* correct_f64 = nullptr;  // in f64
  const TapRun* faulty_f64 = nullptr;
};

/// False where the value isn't in all three runs in the same shapes, and where the fault leaves a NaN.
bool effect_is_below_rounding(const Model& model, const EffectQuestion& question,
                              const JudgeOptions& judge);

}  // namespace shardcheck
