// SPDX-License-Identifier: Apache-2.0
// `shardcheck faults`: every fault of the catalogue at sampled spots of several models, before every gate.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "harness/faults/trial.hpp"

namespace shardcheck {

struct FaultOptions {
  std::vector<std::string> models;  // names as load_model takes them
  std::string plan = "megatron";    // of the faults that name none
  bool only_plan = false;           // leave out the faults that need a plan of their own
  std::vector<int> tp;  // group sizes; of a plan with several axes the last one's, others 1
  std::vector<std::string> faults;  // names; empty: all
  int spots = 2;                    // for each fault, model and group size
  bool legal = true;                // run the legal variations too
  int threads = 2;
  std::function<void(const std::string& what, double done)> progress;
};

/// How a gate did, over all rows whose job it was and that had an effect.
struct GateScore {
  std::int64_t caught = 0, missed = 0, below_rounding = 0;
  std::int64_t first_right = 0;  // of those caught
  std::int64_t cause_right = 0;  // of those caught, where a cause is named
  std::int64_t causes = 0;
  void add(const FaultRow& row);
  std::int64_t counted() const { return caught + missed; }
};

struct FaultReport {
  std::string plan;
  std::vector<std::string> models, notes;
  std::vector<Fault> catalogue;  // those that were asked for
  std::vector<FaultRow> rows;    // by model, fault, spot and gate
  std::int64_t legal_runs = 0;
  std::vector<std::string> alarms;  // of correct programs and legal variations

  std::map<FaultGate, GateScore> scores() const;
  std::map<FaultGate, GateScore> scores(const std::string& fault) const;
  std::int64_t spots(const std::string& fault) const;  // with an effect
  /// Nothing missed, every first value right, no alarm, 85 % of the causes right.
  bool passed() const;
};

/// Share of causes that must be right.
inline constexpr double kCausesRight = 0.85;

/// Throws InputError: an unknown model, plan or fault, or a group size that no model can have.
FaultReport run_faults(const FaultOptions& options, const VerifyParts& parts);

/// The kill table, one line for each fault, what went wrong in words, and a summary.
std::string faults_table(const FaultReport& report);
/// Kind, name, layer, source and sentence of each fault.
std::string catalogue_table(const std::vector<Fault>& faults);
/// Schema "shardcheck.faults/1".
std::string faults_json(const FaultReport& report);

}  // namespace shardcheck
