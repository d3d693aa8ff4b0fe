// SPDX-License-Identifier: Apache-2.0
#include "harness/assess.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/audit.hpp"

namespace shardcheck {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// limit / measured, where nothing measured is an infinite margin and NaN none at all.
double margin_of(double limit, double measured) {
  if (std::isnan(measured)) return 0.0;
  return measured == 0.0 ? kInfinity : limit / measured;
}

/// A failing place, before the earliest is chosen.
struct Suspect {
  int order;
  Gate gate;
  FirstFailure failure;
};

class Assessment {
 public:
  Assessment(const Model& model, const VerifyParts& parts, const CellRun& cell, Phase phase,
             const Measures& measures)
      : model_(model), parts_(parts), cell_(cell), phase_(phase), measures_(measures) {}

  CellReport run() {
    report_.mesh = cell_.program->mesh;
    report_.dtype = cell_.settings.storage;
    report_.wire = cell_.settings.wire;
    report_.phase = phase_;
    for (const Gate gate : kGates) report_.gates[gate] = {};
    judge_g0();
    judge_audit();
    judge_g3();
    judge_logits();
    for (const std::vector<Mistrust>& found :
         {mistrusted_values(cell_.taps), unchecked_values(measures_.scores)}) {
      for (const Mistrust& value : found) {
        report_.mistrust.push_back(
            fmt::format("{} of rank {}: {}", value.tap, value.rank, value.sentence));
      }
    }
    const auto earliest = std::min_element(
        suspects_.begin(), suspects_.end(), [](const Suspect& a, const Suspect& b) {
          return a.order != b.order ? a.order < b.order : rank_of(a.gate) < rank_of(b.gate);
        });
    if (earliest != suspects_.end()) {
      report_.first = earliest->failure;
      report_.first->gate = earliest->gate;
      explain(earliest->order, *report_.first);
      if (measures_.diagnose != nullptr) name_cause(*report_.first);
    }
    const bool failed = std::any_of(report_.gates.begin(), report_.gates.end(), [](const auto& gate) {
      return gate.second.ran && !gate.second.passed;
    });
    report_.verdict = failed                     ? Verdict::failed
                      : report_.mistrust.empty() ? Verdict::passed
                                                 : Verdict::mistrusted;
    return std::move(report_);
  }

 private:
  /// At one tap the gate that has numbers speaks first.
  static int rank_of(Gate gate) { return gate == Gate::g3 ? 0 : 1 + static_cast<int>(gate); }

  void judge_g0() {
    std::vector<WiringFault> faults = cell_.weight_faults;
    for (auto&& more :
         {check_replicas(*cell_.program, cell_.taps), check_caches(*cell_.program, cell_.taps),
          from_mismatches(*cell_.program, cell_.result.wiring)}) {
      faults.insert(faults.end(), more.begin(), more.end());
    }
    settle_ties(faults, measures_.scores);
    report_.gates[Gate::g0] = {true, faults.empty(), std::nullopt};
    // One cause may show on several ranks and steps: the earliest place counts.
    for (const WiringFault& fault : faults) {
      suspects_.push_back({fault.order, Gate::g0, failure_of(fault, faults)});
    }
  }

  void judge_audit() {
    if (cell_.result.ended) return;  // a run that ended early has no whole ledger
    std::unique_ptr<World> world = parts_.worlds.make("solo", cell_.program->mesh);
    const std::unique_ptr<Device> meta = parts_.devices.make("meta");
    Device* const device = meta.get();
    WeightStore shapes(model_, cell_.settings.storage);
    const RunResult traced = run_program(*cell_.executed, *world, {&device, 1}, shapes,
                                         cell_.settings, cell_.steps);
    const AuditResult result = audit(model_, cell_.program->plan, cell_.settings, cell_.steps,
                                     cell_.result.ledgers, traced.ledgers, parts_.exchanges);
    report_.gates[Gate::audit] = {true, result.passed, std::nullopt};
    report_.collectives = result.collectives;
    report_.payload_bytes = result.payload_bytes;
    if (result.passed) return;
    FirstFailure failure;
    failure.tap = result.site;
    failure.ranks = result.ranks;
    failure.cause = result.problem;
    suspects_.push_back(
        {program_order(*cell_.program, Phase::prefill, result.site), Gate::audit, failure});
  }

  void judge_g3() {
    GateResult gate{true, true, kInfinity};
    for (const TapScore& score : measures_.scores) {
      gate.margin = std::min(*gate.margin, score.margin());
      if (!report_.worst || score.margin() < report_.worst->margin()) report_.worst = score;
      if (score.passed()) continue;
      gate.passed = false;
      // All gates count in instructions of the phase; the judge's own order counts outputs.
      const FirstFailure failure = failure_of(score, measures_.scores);
      suspects_.push_back({program_order(*cell_.program, failure.phase, score.tap), Gate::g3, failure});
    }
    if (cell_.result.ended) {
      gate.passed = false;
      FirstFailure failure;
      failure.tap = cell_.result.ended->site;
      failure.phase = cell_.result.ended->phase;
      failure.step = cell_.result.ended->step;
      failure.ranks = cell_.result.ended->ranks;
      failure.cause = "the run ends here: " + cell_.result.ended->message;
      suspects_.push_back(
          {program_order(*cell_.program, failure.phase, failure.tap), Gate::g3, failure});
    }
    report_.gates[Gate::g3] = gate;
  }

  void judge_logits() {
    const std::string logits = logits_tap(*cell_.program, phase_);
    EndToEnd yardstick = measures_.plain_yardstick;
    const bool f64 = cell_.settings.storage == DType::f64 && cell_.settings.wire == DType::f64;
    report_.logits = end_to_end(cell_.taps, logits, measures_.reference, f64 ? nullptr : &yardstick);
    const auto enough = [&] {
      return report_.logits.rel_fro <= kG4Ratio * yardstick.rel_fro && report_.logits.unexcused == 0;
    };
    if (!f64 && report_.logits.complete && cell_.program->mesh.ranks() > 1 && !enough()) {
      widen(yardstick, measures_.split_yardstick());
      report_.logits = end_to_end(cell_.taps, logits, measures_.reference, &yardstick);
    }
    const EndToEnd& e = report_.logits;
    const Gate gate = f64 ? Gate::g2 : Gate::g4;
    GateResult& result = report_.gates[gate];
    result.ran = true;
    std::string cause;
    if (!e.complete) {
      result.margin = 0.0;
      cause = "the logits are missing or have the wrong shape";
    } else if (f64) {
      result.margin = margin_of(kG2Limit, e.rel_max);
      result.passed = e.rel_max <= kG2Limit;
      cause = fmt::format("logits differ from the reference by {:.3g} of the largest, limit {:.0e}",
                          e.rel_max, kG2Limit);
    } else {
      const double limit = kG4Ratio * yardstick.rel_fro;
      result.margin = margin_of(limit, e.rel_fro);
      result.passed = e.rel_fro <= limit && e.unexcused == 0;
      cause = e.unexcused > 0
                  ? fmt::format("{} first choices differ from the reference without a close second",
                                e.unexcused)
                  : fmt::format(
                        "error of the logits {:.3g} is more than twice that of an unsharded run, "
                        "{:.3g}",
                        e.rel_fro, yardstick.rel_fro);
    }
    if (result.passed) return;
    FirstFailure failure;
    failure.tap = logits;
    failure.phase = e.phase;
    failure.step = e.step;
    failure.ranks = {e.worst_rank};
    failure.row = failure.local_row = e.row;
    failure.feature = failure.local_feature = e.column;
    failure.got = e.got;
    failure.expected = e.expected;
    failure.cause = cause;
    suspects_.push_back(
        {static_cast<int>(cell_.program->instructions.at(phase_).size()), gate, failure});
  }

  /// Ranks in order, and the cause that other evidence at the same place gives.
  void explain(int order, FirstFailure& first) {
    std::sort(first.ranks.begin(), first.ranks.end());
    first.ranks.erase(std::unique(first.ranks.begin(), first.ranks.end()), first.ranks.end());
    first.all_ranks = static_cast<int>(first.ranks.size()) == cell_.program->mesh.ranks();
    for (const Finding& finding : cell_.program->findings) {
      // A collective that doesn't fit its input shows at its output.
      if (finding.tap != first.tap && finding.tap != first.tap + ".partial") continue;
      first.cause = finding.fix.empty() ? finding.sentence
                                        : fmt::format("{}; add {}", finding.sentence, finding.fix);
      return;
    }
    if (!first.cause.empty()) return;
    for (const Suspect& suspect : suspects_) {
      if (suspect.order == order && !suspect.failure.cause.empty())
        first.cause = suspect.failure.cause;
    }
    if (first.cause.empty() && std::isnan(first.got)) first.cause = "not a number";
  }

  /// The cause by the numbers, before what other evidence says.
  void name_cause(FirstFailure& first) {
    const std::optional<Diagnosis> found = diagnosis_of(first);
    if (found) {
      first.cause_name = found->name;
      first.residual = found->residual;
      first.also = found->also;
      first.cause = first.cause.empty() ? found->sentence : found->sentence + "; " + first.cause;
    }
    if (!measures_.propagated) return;
    first.propagated = measures_.propagated();
    if ((first.gate == Gate::g2 || first.gate == Gate::g4) && first.propagated)
      begin_at_propagated(first);
  }

  /// Every op is right by its own inputs: where the values leave the reference's says more than the logits do.
  void begin_at_propagated(FirstFailure& first) const {
    const Propagated& left = *first.propagated;
    first.tap = left.tap;
    first.phase = left.phase;
    first.step = left.step;
    first.ranks = left.ranks;
    for (int rank = 0; left.ranks.empty() && rank < cell_.program->mesh.ranks(); ++rank)
      first.ranks.push_back(rank);
    first.all_ranks = static_cast<int>(first.ranks.size()) == cell_.program->mesh.ranks();
    first.row = first.feature = first.local_row = first.local_feature = -1;  // those were the logits'
    first.got = first.expected = std::numeric_limits<double>::quiet_NaN();
  }

  std::optional<Diagnosis> diagnosis_of(const FirstFailure& first) const {
    const auto known = [](std::string_view cause) {
      return Diagnosis{std::string(cause), std::string(find_cause(cause)->sentence), std::nullopt, {}};
    };
    // What stands in the weights of a rank is no matter of fitting.
    for (const WiringFault& fault : cell_.weight_faults) {
      if (fault.tap == first.tap && !fault.cause.empty()) return known_with(known(fault.cause), fault.sentence, first);
    }
    if (cell_.result.ended && cell_.result.ended->site == first.tap) return known("run_ended");
    if (first.gate == Gate::audit) return known("collective_differs");
    if (first.gate == Gate::g2 || first.gate == Gate::g4) {
      Diagnosis none = known("unexplained");
      none.sentence += ": every op is right by its own inputs, so the program itself may not be the model";
      return none;
    }
    const bool has_numbers = std::any_of(measures_.scores.begin(), measures_.scores.end(), [&](const TapScore& score) {
      return score.tap == first.tap && !score.passed();
    });
    if (has_numbers)
      return diagnose(model_, {cell_.program, &cell_.taps, first.tap, first.phase, first.ranks}, *measures_.diagnose);
    return first.cause_name.empty() ? std::nullopt : std::optional(known(first.cause_name));
  }

  /// The weights' evidence, said once.
  static Diagnosis known_with(Diagnosis diagnosis, const std::string& evidence, const FirstFailure& first) {
    if (first.cause.find(evidence) == std::string::npos) diagnosis.sentence += ": " + evidence;
    return diagnosis;
  }

  /// The larger of two yardsticks' errors, of the logits and of every token.
  static void widen(EndToEnd& yardstick, const EndToEnd& other) {
    yardstick.rel_fro = std::max(yardstick.rel_fro, other.rel_fro);
    for (std::size_t i = 0; i < yardstick.token_error.size() && i < other.token_error.size(); ++i) {
      yardstick.token_error[i] = std::max(yardstick.token_error[i], other.token_error[i]);
    }
  }

  const Model& model_;
  const VerifyParts& parts_;
  const CellRun& cell_;
  Phase phase_;
  const Measures& measures_;
  CellReport report_;
  std::vector<Suspect> suspects_;
};

}  // namespace

std::string logits_tap(const Program& program, Phase phase) {
  return program.value(program.result.at(phase)).name;
}

FirstFailure failure_of(const TapScore& score, std::span<const TapScore> all) {
  FirstFailure failure;
  failure.gate = Gate::g3;
  failure.tap = score.tap;
  failure.phase = score.worst.phase;
  failure.step = score.worst.step;
  for (const TapScore& other : all) {
    if (other.order == score.order && other.tap == score.tap && !other.passed()) {
      failure.ranks.push_back(other.rank);
    }
  }
  failure.cause = score.problem;
  if (score.compared > 0) {
    failure.row = score.worst.row;
    failure.feature = score.worst.feature;
    failure.local_row = score.worst.local_row;
    failure.local_feature = score.worst.local_feature;
    failure.got = score.worst.got;
    failure.expected = score.worst.expected;
  }
  return failure;
}

FirstFailure failure_of(const WiringFault& fault, std::span<const WiringFault> all) {
  FirstFailure failure;
  failure.gate = Gate::g0;
  failure.tap = fault.tap;
  failure.phase = fault.phase;
  failure.step = fault.step;
  for (const WiringFault& other : all) {
    if (other.tap == fault.tap && other.phase == fault.phase && other.step == fault.step) {
      failure.ranks.insert(failure.ranks.end(), other.ranks.begin(), other.ranks.end());
    }
  }
  failure.cause = fault.sentence;
  failure.cause_name = fault.cause;
  return failure;
}

CellReport assess(const Model& model, const VerifyParts& parts, const CellRun& cell, Phase phase,
                  const Measures& measures) {
  return Assessment(model, parts, cell, phase, measures).run();
}

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed:
      return "passed";
    case Verdict::failed:
      return "failed";
    case Verdict::mistrusted:
      return "mistrusted";
    case Verdict::skipped:
      return "skipped";
  }
  return "?";
}

std::string_view name(Gate gate) {
  switch (gate) {
    case Gate::g0:
      return "G0";
    case Gate::audit:
      return "audit";
    case Gate::g1:
      return "G1";
    case Gate::g2:
      return "G2";
    case Gate::g3:
      return "G3";
    case Gate::g4:
      return "G4";
    case Gate::g5:
      return "G5";
  }
  return "?";
}

std::string_view description(Gate gate) {
  switch (gate) {
    case Gate::g0:
      return "wiring, bitwise";
    case Gate::audit:
      return "collectives against the plan's closed form";
    case Gate::g1:
      return "exact mode";
    case Gate::g2:
      return "f64 logits against the reference";
    case Gate::g3:
      return "every op against f64";
    case Gate::g4:
      return "logits against an unsharded run's error";
    case Gate::g5:
      return "bitwise across TP sizes";
  }
  return "?";
}

std::size_t VerifyReport::count(Verdict verdict) const {
  return static_cast<std::size_t>(std::count_if(
      cells.begin(), cells.end(), [&](const CellReport& cell) { return cell.verdict == verdict; }));
}

bool VerifyReport::passed() const {
  return ran && !cells.empty() && count(Verdict::failed) + count(Verdict::mistrusted) == 0;
}

}  // namespace shardcheck
