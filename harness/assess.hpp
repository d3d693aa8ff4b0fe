// SPDX-License-Identifier: Apache-2.0
// Private to verify: one cell's run through all gates, and the place where it first goes wrong.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "harness/verify.hpp"
#include "harness/wiring.hpp"

namespace shardcheck {

/// A run of one cell and what was seen while it ran.
struct CellRun {
  const Program* program = nullptr;  // that it is judged as
  const Program* executed = nullptr;  // the same, or that one fused
  RunSettings settings;
  std::vector<Step> steps;
  TapRun taps;
  RunResult result;
  std::vector<WiringFault> weight_faults;
};

/// What a cell is judged against.
struct Measures {
  const ReferenceLogits& reference;
  const std::vector<TapScore>& scores;  // of gate G3
  const EndToEnd& plain_yardstick;
  /// The second unsharded run (harness/yardstick.hpp); called only where the first is not enough.
  std::function<EndToEnd()> split_yardstick;
  /// How the cause of a failure is looked for; null: it isn't.
  const DiagnoseOptions* diagnose = nullptr;
  /// Where the values first leave the reference's; called only for a failing cell with `diagnose`.
  std::function<std::optional<Propagated>()> propagated = {};
};

/// The tap that holds the logits of a program.
std::string logits_tap(const Program& program, Phase phase);

/// A failing score or fault as the place where a run goes wrong, with all ranks that fail at the same tap.
FirstFailure failure_of(const TapScore& score, std::span<const TapScore> all);
FirstFailure failure_of(const WiringFault& fault, std::span<const WiringFault> all);

/// All of a cell's report but its repro command.
CellReport assess(const Model& model, const VerifyParts& parts, const CellRun& cell, Phase phase,
                  const Measures& measures);

}  // namespace shardcheck
