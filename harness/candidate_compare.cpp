// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "harness/assess.hpp"
#include "harness/candidate.hpp"
#include "harness/locate.hpp"
#include "harness/mistrust.hpp"
#include "harness/wiring.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

class Comparer {
 public:
  Comparer(const Model& model, const Candidate& candidate, const VerifyParts& parts)
      : model_(model),
        candidate_(candidate),
        run_(candidate.run),
        parts_(parts),
        locator_({&model, &candidate.program, &candidate.run, &candidate.sequences}, parts) {}

  CandidateReport compare() {
    report_.mesh = run_.mesh;
    report_.unknown = candidate_.unknown;
    report_.rows = locator_.rows();
    report_.compared = static_cast<std::int64_t>(report_.rows.size());
    check_coverage();
    for (const auto& faults :
         {check_replicas(candidate_.program, run_), check_caches(candidate_.program, run_)}) {
      for (const WiringFault& fault : faults) wiring_.push_back(fault);
    }
    const std::unique_ptr<Device> device = parts_.devices.make("cpu");
    JudgeOptions judge;
    judge.taps_may_be_missing = true;
    judge.ops = &parts_.local_ops;
    judge.arithmetic = [&](Primitive primitive, DType storage) {
      return device->arithmetic(primitive, storage);
    };
    const JudgeCell cell{&candidate_.program, &run_};
    report_.scores = judge_local(model_, {&cell, 1}, judge).front();
    for (const Mistrust& value : mistrusted_values(run_)) {
      report_.mistrust.push_back(
          fmt::format("{} of rank {}: {}", value.tap, value.rank, value.sentence));
    }
    settle_ties(wiring_, report_.scores);
    find_first();
    return std::move(report_);
  }

 private:
  /// A tap that some step has, every step must have.
  void check_coverage() {
    for (std::size_t s = 0; s < run_.steps.size(); ++s) {
      for (std::size_t other = 0; other < run_.steps.size(); ++other) {
        if (run_.steps[other].step.phase != run_.steps[s].step.phase) continue;
        for (const TapValue& value : run_.steps[other].values) {
          if (run_.steps[s].find(value.name) != nullptr) continue;
          CandidateRow row;
          row.tap = value.name;
          row.phase = run_.steps[s].step.phase;
          row.step = run_.steps[s].step.index;
          row.order = locator_.order_of(value.name);
          for (int rank = 0; rank < run_.mesh.ranks(); ++rank) row.ranks.push_back(rank);
          row.problem = fmt::format("missing in {} step {}, but {} step {} has it", name(row.phase),
                                    row.step, name(run_.steps[other].step.phase),
                                    run_.steps[other].step.index);
          report_.rows.push_back(std::move(row));
        }
      }
    }
  }

  void find_first() {
    // At one tap what can't be compared at all speaks first, then what has numbers.
    struct Suspect {
      int order, gate;
      FirstFailure failure;
    };
    std::vector<Suspect> suspects;
    for (const CandidateRow& row : report_.rows) {
      if (row.passed()) continue;
      FirstFailure failure;
      failure.gate = Gate::g4;
      failure.tap = row.tap;
      failure.phase = row.phase;
      failure.step = row.step;
      failure.ranks = row.ranks;
      failure.cause = !row.problem.empty()
                          ? row.problem
                          : fmt::format("assembled value is off by {:.3g}, limit {:.3g} ({})",
                                        row.rel_fro, row.limit,
                                        locator_.judged_as_f64() ? "that of f64 runs"
                                                        : "4 times the unsharded run's error");
      suspects.push_back({row.order, row.problem.empty() ? 3 : 0, failure});
    }
    for (const WiringFault& fault : wiring_) {
      suspects.push_back({fault.order, 2, failure_of(fault, wiring_)});
    }
    for (const TapScore& score : report_.scores) {
      if (score.passed()) continue;
      suspects.push_back({program_order(candidate_.program, Phase::prefill, score.tap), 1,
                          failure_of(score, report_.scores)});
    }
    const auto earliest = std::min_element(
        suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) {
          return a.order != b.order ? a.order < b.order : a.gate < b.gate;
        });
    if (earliest == suspects.end()) return;
    report_.first = earliest->failure;
    std::vector<int>& ranks = report_.first->ranks;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    // A sum that is wrong as a whole has no rank of its own.
    report_.first->all_ranks = ranks.empty() || static_cast<int>(ranks.size()) == run_.mesh.ranks();
    report_.first->propagated = first_propagated(report_.rows);
    name_cause(*report_.first);
  }

  /// By the numbers, where the op can be recomputed from what the candidate shows.
  void name_cause(FirstFailure& first) const {
    const bool has_numbers = std::any_of(report_.scores.begin(), report_.scores.end(), [&](const TapScore& score) {
      return score.tap == first.tap && !score.passed();
    });
    if (!has_numbers) return;
    const std::unique_ptr<Device> device = parts_.devices.make("cpu");
    DiagnoseOptions options;
    options.arithmetic = [&](Primitive primitive, DType storage) { return device->arithmetic(primitive, storage); };
    options.ops = &parts_.local_ops;
    options.taps_may_be_missing = true;
    const Diagnosis found = diagnose(model_, {&candidate_.program, &run_, first.tap, first.phase, first.ranks}, options);
    first.cause_name = found.name;
    first.residual = found.residual;
    first.also = found.also;
    first.cause = first.cause.empty() ? found.sentence : found.sentence + "; " + first.cause;
  }

  const Model& model_;
  const Candidate& candidate_;
  const TapRun& run_;
  const VerifyParts& parts_;
  Locator locator_;
  std::vector<WiringFault> wiring_;
  CandidateReport report_;
};

}  // namespace

bool CandidateReport::passed() const { return compared > 0 && !first && mistrust.empty(); }

CandidateReport compare_candidate(const Model& model, const Candidate& candidate,
                                  const VerifyParts& parts) {
  return Comparer(model, candidate, parts).compare();
}

}  // namespace shardcheck
