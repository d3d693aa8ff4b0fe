// SPDX-License-Identifier: Apache-2.0
// Gates G2 and G4: the logits of a run against the reference's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/inputs.hpp"
#include "harness/run.hpp"
#include "model/model.hpp"
#include "reference/matrix.hpp"

namespace shardcheck {

/// f64 logits of the reference, per sequence: [length, vocab].
using ReferenceLogits = std::vector<reference::Matrix<double>>;
ReferenceLogits reference_logits(const Model& model, const Sequences& sequences);

/// How far a run's logits are from the reference's, over all steps and replicas.
struct EndToEnd {
  double rel_fro = 0.0;                // ||candidate - reference||_F / ||reference||_F
  double rel_max = 0.0;                // max |candidate - reference| / max |reference|
  double kl_mean = 0.0, kl_max = 0.0;  // KL(reference || candidate) per token, nats
  double top1_agree = 1.0;             // share of tokens with the same first choice
  std::int64_t flips = 0, unexcused = 0;
  int worst_rank = 0;
  /// Per token of the run (steps in order): largest |candidate - reference|, and the first choice.
  std::vector<double> token_error;
  std::vector<std::int64_t> top1;
  bool complete = true;  // false where a rank has no logits
  /// The element of the largest error.
  Phase phase = Phase::prefill;
  int step = 0;
  std::int64_t row = 0, column = 0;
  double got = 0.0, expected = 0.0;
};

/// `yardstick` excuses flips: a first choice may differ where the reference's gap between first and second is at most 4
/// times that token's largest error in the yardstick run. Null: no flip is excused.
EndToEnd end_to_end(const TapRun& run, const std::string& logits, const ReferenceLogits& reference,
                    const EndToEnd* yardstick);

/// Relative error of the residual stream after each layer against the reference, for the report by depth.
inline constexpr double kG2Limit = 1e-12;  // 320 times what correct f64 runs show, 1e-5 of the smallest planted fault
inline constexpr double kG4Ratio = 2.0;  // of the yardstick's error; correct runs stay below 1.34

}  // namespace shardcheck
