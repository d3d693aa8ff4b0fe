// SPDX-License-Identifier: Apache-2.0
// Where the values of a run first leave the truth: every tap, assembled from its ranks, against the reference. An op that
// is wrong by its own inputs is found by gate G3; this shows how far its error has got.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/candidate.hpp"
#include "harness/inputs.hpp"
#include "harness/run.hpp"
#include "harness/verify.hpp"

namespace shardcheck {

/// A run, and the program that it is judged as.
struct LocatedRun {
  const Model* model = nullptr;
  const Program* program = nullptr;
  const TapRun* run = nullptr;
  const Sequences* sequences = nullptr;  // what it was fed
};

class Locator {
 public:
  Locator(const LocatedRun& located, const VerifyParts& parts);
  ~Locator();
  Locator(const Locator&) = delete;
  Locator& operator=(const Locator&) = delete;

  /// One row for every tap of every step. In f64 the limit is G2's; else 4 times the relative error of unsharded runs in the
  /// run's coarser dtype at the same tap: of the plain run, and where that isn't enough of one that has the plan's sums.
  std::vector<CandidateRow> rows();
  /// Place of a tap in the program; containers count as the value that they are.
  int order_of(const std::string& tap) const;
  bool judged_as_f64() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The first row, in program order, that is off; nothing if all values that the reference has are within their limits.
std::optional<Propagated> first_propagated(std::span<const CandidateRow> rows);

}  // namespace shardcheck
