// SPDX-License-Identifier: Apache-2.0
// One fault at one spot of one program, put before each gate.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/faults/fault.hpp"
#include "harness/verify.hpp"

namespace shardcheck {

enum class FaultStatus {
  caught,  // the gate fails, whichever value it names
  missed,  // it is the gate's job, and it passes
  below_rounding,  // what the fault does in f64 stays within the error budget of this format, at the declared value
  no_effect,   // no value of any rank differs from the correct run's: not counted
  not_its_job  // and not found either
};
std::string_view name(FaultStatus status);

/// One cell of the kill table.
struct FaultRow {
  std::string fault, source;
  char kind = '?';
  FaultLayer layer = FaultLayer::execution;
  std::string model, plan;
  Spot spot;
  Mesh mesh;
  FaultGate gate = FaultGate::f64;
  FaultStatus status = FaultStatus::missed;
  WrongTap first;                     // as the gate names it; of lint the tap alone
  WrongTap expected;                  // empty for lint
  std::string cause, expected_cause;  // of lint: rules
  double margin = 0.0;  // limit / measured at the first wrong value, below 1 where it was caught; 0: no number was needed
  std::string note;  // in words, where a row needs them
  bool caught() const { return status == FaultStatus::caught; }
  bool first_is_right() const;
  bool cause_is_right() const;
};

/// A model under a plan, with its correct runs: what all trials share. Thread safe once made.
class FaultBench {
 public:
  /// Resolves, builds and runs everything that is correct. Throws InputError as verify does.
  FaultBench(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
             const VerifyParts& parts);
  ~FaultBench();
  FaultBench(const FaultBench&) = delete;
  FaultBench& operator=(const FaultBench&) = delete;

  std::size_t meshes() const;
  const Program& program(std::size_t mesh) const;
  /// Correct runs that were made, and the sentences of those that failed.
  std::int64_t correct_runs() const;
  const std::vector<std::string>& alarms() const;

  /// The fault before every gate whose job it is; the others say not_its_job. Empty if it can't be planted there. All
  /// rows say no_effect where it changes no value.
  std::vector<FaultRow> try_fault(const Fault& fault, const Spot& spot, std::size_t mesh) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardcheck
