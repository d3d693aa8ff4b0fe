// SPDX-License-Identifier: Apache-2.0
#include "harness/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/audit.hpp"
#include "harness/candidate.hpp"
#include "harness/wiring.hpp"
#include "harness/yardstick.hpp"
#include "model/error.hpp"

namespace shardcheck {
namespace {

/// Taps that are held at once before they are judged: with the weights in f64 a run on SmolLM2 stays below 3 GB.
constexpr std::size_t kTapBytesAtOnce = std::size_t{256} << 20;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// limit / measured, where nothing measured is an infinite margin and NaN none at all.
double margin_of(double limit, double measured) {
  if (std::isnan(measured)) return 0.0;
  return measured == 0.0 ? kInfinity : limit / measured;
}

/// A run of one cell and what was seen while it ran.
struct CellRun {
  const Program* program = nullptr;
  RunSettings settings;
  std::vector<Step> steps;
  TapRun taps;
  RunResult result;
  std::vector<WiringFault> weight_faults;
};

/// A failing place, before the earliest is chosen.
struct Suspect {
  int order;
  Gate gate;
  FirstFailure failure;
};

class Verification {
 public:
  Verification(const Model& model, const Plan& plan, const VerifyOptions& options,
               const VerifyParts& parts)
      : model_(model), plan_(plan), options_(options), parts_(parts) {}

  VerifyReport run() {
    report_.model = model_.config().name;
    report_.plan = plan_.name;
    build_programs();
    if (!report_.findings.empty() && !options_.force) {
      report_.ran = false;
      return std::move(report_);
    }
    prepare_inputs();
    device_ = parts_.devices.make(options_.device);
    if (!device_->has_values()) {
      throw InputError(fmt::format(
          "--device {}: it has no values to compare; use cost for shapes alone", options_.device));
    }
    progress("reference", 0.0);
    reference_ = reference_logits(model_, sequences_);
    const auto groups = static_cast<double>(options_.dtypes.size() * options_.phases.size());
    double done = 0.0;
    for (const DType dtype : options_.dtypes) {
      note_arithmetic(dtype);
      WeightStore weights(model_, dtype);
      progress(fmt::format("{} weights", name(dtype)), done / groups);
      weights.load_all(options_.threads);
      inspected_.clear();
      for (const Phase phase : options_.phases) {
        run_group(dtype, phase, weights);
        done += 1.0;
        progress(fmt::format("{} {}", name(dtype), name(phase)), done / groups);
      }
    }
    sort_cells();
    return std::move(report_);
  }

 private:
  void progress(const std::string& what, double done) {
    if (options_.progress) options_.progress(what, done);
  }

  void build_programs() {
    for (const Mesh& mesh : options_.meshes) {
      programs_.push_back(
          std::make_unique<Program>(build_program(model_, resolve(plan_, model_, mesh), parts_.ops)));
      for (const Finding& finding : programs_.back()->findings) {
        const auto same = [&](const Finding& f) {
          return f.rule == finding.rule && f.tap == finding.tap;
        };
        if (std::none_of(report_.findings.begin(), report_.findings.end(), same))
          report_.findings.push_back(finding);
      }
    }
    // The yardstick is always run: the same plan on one rank.
    for (const auto& program : programs_) {
      if (program->mesh.ranks() == 1) single_ = program.get();
    }
    if (single_ == nullptr) {
      Mesh one = options_.meshes.front();
      for (Mesh::Axis& axis : one.axes) axis.size = 1;
      own_single_ = std::make_unique<Program>(
          build_program(model_, resolve(plan_, model_, one), parts_.ops));
      single_ = own_single_.get();
    }
    note_groups();
  }

  /// Says which cuts go through a quantisation group: legal here, since weights are dequantised when loaded.
  void note_groups() {
    for (const auto& program : programs_) {
      for (const Module& module : program->modules) {
        if (module.kind != ModuleKind::linear || !model_.has_weights()) continue;
        const std::int64_t group = info(model_.dtype(module.weight())).block_elements;
        const ModulePlacement& placement = program->plan.placement(module.path);
        if (group <= 1 || placement.cols.empty()) continue;
        const bool cut = std::any_of(
            placement.cols.begin(), placement.cols.end(), [&](const Ranges& ranges) {
              return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) {
                return r.begin % group != 0 || r.end % group != 0;
              });
            });
        if (!cut) continue;
        std::vector<int> whole;
        for (int size = 1; size <= 16; ++size) {
          if (module.in % (group * size) == 0) whole.push_back(size);
        }
        report_.notes.push_back(
            fmt::format("{}: {} cuts {} ({} columns in groups of {}, {}) inside a group; weights "
                        "are dequantised when loaded, so this "
                        "is exact here; sizes that keep groups whole: {}",
                        to_string(program->mesh), plan_.name, module.path, module.in, group,
                        name(model_.dtype(module.weight())), fmt::join(whole, ", ")));
        break;  // one note per mesh
      }
    }
  }

  void prepare_inputs() {
    std::vector<const Program*> programs;
    for (const auto& program : programs_) programs.push_back(program.get());
    sequences_ = make_sequences(options_.inputs, model_.config(), programs);
    for (const Phase phase : options_.phases) {
      steps_[phase] = phase == Phase::prefill ? prefill_steps(sequences_, options_.inputs.chunk)
                                              : decode_steps(sequences_, options_.inputs);
    }
  }

  void note_arithmetic(DType dtype) {
    const Arithmetic a = device_->arithmetic(Primitive::linear, dtype);
    report_.arithmetic[std::string(name(dtype))] = fmt::format(
        "{} accumulate, {} fraction bits, {}{}, softmax weights {}", name(a.accumulate),
        a.fraction_bits, a.truncating ? "truncating" : "round to nearest even",
        a.block_k > 0 ? fmt::format(", {} products at once", a.block_k) : "",
        device_->arithmetic(Primitive::attention, dtype).rounds_softmax_weights
            ? "rounded to storage"
            : "kept");
  }

  RunSettings settings(DType storage) const {
    ReduceSpec reduction = options_.reduction;
    return {storage, options_.wire.value_or(storage), reduction};
  }

  CellRun run_cell(const Program& program, const RunSettings& settings, Phase phase,
                   WeightStore& weights, std::unique_ptr<Interposer> interposer) {
    CellRun cell;
    cell.program = &program;
    cell.settings = settings;
    cell.steps = steps_.at(phase);
    std::unique_ptr<World> world = parts_.worlds.make(options_.world, program.mesh);
    TapCollector collector(program, settings, cell.steps);
    RunOptions run;
    run.taps = &collector;
    run.check_wiring = true;
    run.interposer = interposer.get();
    // Shards don't depend on the phase: one inspection serves both, unless a fault may differ.
    WeightInspector inspector(weights);
    const bool inspect = inspected_.count(&program) == 0 || options_.fault != nullptr;
    if (inspect) run.inspect = [&](RankContext& context) { inspector.inspect(context); };
    Device* const device = device_.get();
    cell.result = run_program(program, *world, {&device, 1}, weights, settings, cell.steps, run);
    if (inspect) inspected_[&program] = inspector.faults();
    cell.weight_faults = inspected_[&program];
    cell.taps = collector.release();
    return cell;
  }

  /// All meshes of one precision and phase. They are judged together, so that a block of weights is read once for all,
  /// but in several lots where their taps would fill the memory.
  void run_group(DType dtype, Phase phase, WeightStore& weights) {
    const RunSettings wanted = settings(dtype);
    const EndToEnd yardstick = plain_yardstick(wanted, phase, weights);
    std::vector<CellRun> lot;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      const Program& program = *programs_[i];
      progress(fmt::format("{} {} {}", to_string(program.mesh), name(dtype), name(phase)), -1.0);
      const bool kept = &program == single_ && single_run_.has_value();
      lot.push_back(
          kept ? std::move(*single_run_)
               : run_cell(program, wanted, phase, weights, fault_for(program, wanted, phase)));
      if (kept) single_run_.reset();
      bytes += tap_bytes(lot.back().taps);
      if (bytes < kTapBytesAtOnce && i + 1 < programs_.size()) continue;
      judge_lot(lot, phase, yardstick, weights);
      lot.clear();
      bytes = 0;
    }
  }

  void judge_lot(const std::vector<CellRun>& lot, Phase phase, const EndToEnd& yardstick,
                 WeightStore& weights) {
    std::vector<JudgeCell> judged;
    for (const CellRun& cell : lot) judged.push_back({cell.program, &cell.taps});
    progress(fmt::format("judging {} {}", name(lot.front().settings.storage), name(phase)), -1.0);
    JudgeOptions judge;
    judge.arithmetic = [this](Primitive primitive, DType storage) {
      return device_->arithmetic(primitive, storage);
    };
    judge.threads = options_.threads;
    const std::vector<std::vector<TapScore>> scores = judge_local(model_, judged, judge);
    for (std::size_t i = 0; i < lot.size(); ++i) {
      report_.cells.push_back(assess(lot[i], phase, scores[i], yardstick, weights));
      if (!options_.dump.empty()) dump(lot[i], phase);
    }
  }

  std::unique_ptr<Interposer> fault_for(const Program& program, const RunSettings& wanted,
                                        Phase phase) const {
    return options_.fault ? options_.fault(program, wanted, phase) : nullptr;
  }

  static std::size_t tap_bytes(const TapRun& run) {
    std::size_t bytes = 0;
    for (const StepTaps& step : run.steps) {
      for (const TapValue& value : step.values) {
        std::vector<const std::byte*> seen;  // replicas share their bytes
        for (const HostTensor& tensor : value.ranks) {
          if (std::find(seen.begin(), seen.end(), tensor.data()) != seen.end()) continue;
          seen.push_back(tensor.data());
          bytes += tensor.bytes();
        }
      }
    }
    return bytes;
  }

  /// Logits of the TP 1 run in the coarser of storage and wire dtype. Where that is a cell too, the run is kept for it.
  EndToEnd plain_yardstick(const RunSettings& wanted, Phase phase, WeightStore& weights) {
    const DType dtype = coarser(wanted.storage, wanted.wire);
    const bool is_cell = own_single_ == nullptr && dtype == wanted.storage && !options_.fault;
    CellRun run = run_single(dtype, is_cell ? wanted : RunSettings{dtype, dtype, wanted.reduction},
                             phase, weights, nullptr);
    const EndToEnd result = end_to_end(run.taps, logits_of(*single_, phase), reference_, nullptr);
    if (is_cell) single_run_ = std::move(run);
    return result;
  }

  /// The same with the sums of the cell's plan; see harness/yardstick.hpp.
  EndToEnd split_yardstick(const CellRun& cell, Phase phase, WeightStore& weights) {
    const DType dtype = coarser(cell.settings.storage, cell.settings.wire);
    const RunSettings settings{dtype, cell.settings.wire, cell.settings.reduction};
    return end_to_end(run_single(dtype, settings, phase, weights, make_split_sums(*cell.program)).taps,
                      logits_of(*single_, phase), reference_, nullptr);
  }

  CellRun run_single(DType dtype, const RunSettings& settings, Phase phase, WeightStore& weights,
                     std::unique_ptr<Interposer> interposer) {
    if (dtype == weights.storage())
      return run_cell(*single_, settings, phase, weights, std::move(interposer));
    WeightStore own(model_, dtype);
    CellRun run = run_cell(*single_, settings, phase, own, std::move(interposer));
    inspected_.erase(single_);  // that was another precision's store
    return run;
  }

  /// The larger of two yardsticks' errors, of the logits and of every token.
  static void widen(EndToEnd& yardstick, const EndToEnd& other) {
    yardstick.rel_fro = std::max(yardstick.rel_fro, other.rel_fro);
    for (std::size_t i = 0; i < yardstick.token_error.size() && i < other.token_error.size(); ++i) {
      yardstick.token_error[i] = std::max(yardstick.token_error[i], other.token_error[i]);
    }
  }

  static std::string logits_of(const Program& program, Phase phase) {
    return program.value(program.result.at(phase)).name;
  }

  CellReport assess(const CellRun& cell, Phase phase, const std::vector<TapScore>& scores,
                    const EndToEnd& yardstick, WeightStore& weights) {
    CellReport report;
    report.mesh = cell.program->mesh;
    report.dtype = cell.settings.storage;
    report.wire = cell.settings.wire;
    report.phase = phase;
    report.repro = repro(report);
    for (const Gate gate : kGates) report.gates[gate] = {};
    std::vector<Suspect> suspects;
    judge_g0(cell, report, suspects);
    judge_audit(cell, report, suspects);
    judge_g3(cell, scores, report, suspects);
    judge_logits(cell, phase, yardstick, weights, report, suspects);
    for (const std::vector<Mistrust>& found : {mistrusted_values(cell.taps), unchecked_values(scores)}) {
      for (const Mistrust& value : found) {
        report.mistrust.push_back(
            fmt::format("{} of rank {}: {}", value.tap, value.rank, value.sentence));
      }
    }
    const auto earliest = std::min_element(
        suspects.begin(), suspects.end(), [](const Suspect& a, const Suspect& b) {
          return a.order != b.order ? a.order < b.order : rank_of(a.gate) < rank_of(b.gate);
        });
    if (earliest != suspects.end()) {
      report.first = earliest->failure;
      report.first->gate = earliest->gate;
      explain(*cell.program, suspects, earliest->order, *report.first);
    }
    const bool failed = std::any_of(report.gates.begin(), report.gates.end(), [](const auto& gate) {
      return gate.second.ran && !gate.second.passed;
    });
    report.verdict = failed                    ? Verdict::failed
                     : report.mistrust.empty() ? Verdict::passed
                                               : Verdict::mistrusted;
    return report;
  }

  /// At one tap the gate that has numbers speaks first.
  static int rank_of(Gate gate) { return gate == Gate::g3 ? 0 : 1 + static_cast<int>(gate); }

  void judge_g0(const CellRun& cell, CellReport& report, std::vector<Suspect>& suspects) {
    std::vector<WiringFault> faults = cell.weight_faults;
    for (auto&& more :
         {check_replicas(*cell.program, cell.taps), check_caches(*cell.program, cell.taps),
          from_mismatches(*cell.program, cell.result.wiring)}) {
      faults.insert(faults.end(), more.begin(), more.end());
    }
    report.gates[Gate::g0] = {true, faults.empty(), std::nullopt};
    // One cause may show on several ranks and steps: the earliest place counts.
    for (const WiringFault& fault : faults) {
      FirstFailure failure;
      failure.tap = fault.tap;
      failure.phase = fault.phase;
      failure.step = fault.step;
      failure.ranks = fault.ranks;
      for (const WiringFault& other : faults) {
        if (other.tap == fault.tap && other.phase == fault.phase && other.step == fault.step) {
          failure.ranks.insert(failure.ranks.end(), other.ranks.begin(), other.ranks.end());
        }
      }
      failure.cause = fault.sentence;
      suspects.push_back({fault.order, Gate::g0, failure});
    }
  }

  void judge_audit(const CellRun& cell, CellReport& report, std::vector<Suspect>& suspects) {
    if (cell.result.ended) return;  // a run that ended early has no whole ledger
    std::unique_ptr<World> world = parts_.worlds.make("solo", cell.program->mesh);
    const std::unique_ptr<Device> meta = parts_.devices.make("meta");
    Device* const device = meta.get();
    WeightStore shapes(model_, cell.settings.storage);
    const RunResult traced = run_program(*cell.program, *world, {&device, 1}, shapes, cell.settings,
                                         cell.steps);
    const AuditResult result = audit(model_, cell.program->plan, cell.settings, cell.steps,
                                     cell.result.ledgers, traced.ledgers);
    report.gates[Gate::audit] = {true, result.passed, std::nullopt};
    report.collectives = result.collectives;
    report.payload_bytes = result.payload_bytes;
    if (result.passed) return;
    FirstFailure failure;
    failure.tap = result.site;
    failure.ranks = result.ranks;
    failure.cause = result.problem;
    suspects.push_back(
        {program_order(*cell.program, Phase::prefill, result.site), Gate::audit, failure});
  }

  void judge_g3(const CellRun& cell, const std::vector<TapScore>& scores, CellReport& report,
                std::vector<Suspect>& suspects) {
    GateResult gate{true, true, kInfinity};
    for (const TapScore& score : scores) {
      gate.margin = std::min(*gate.margin, score.margin());
      if (!report.worst || score.margin() < report.worst->margin()) report.worst = score;
      if (score.passed()) continue;
      gate.passed = false;
      FirstFailure failure;
      failure.tap = score.tap;
      failure.phase = score.worst.phase;
      failure.step = score.worst.step;
      failure.ranks = {score.rank};
      for (const TapScore& other : scores) {
        if (other.order == score.order && other.tap == score.tap && !other.passed())
          failure.ranks.push_back(other.rank);
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
      suspects.push_back({score.order, Gate::g3, failure});
    }
    if (cell.result.ended) {
      gate.passed = false;
      FirstFailure failure;
      failure.tap = cell.result.ended->site;
      failure.phase = cell.result.ended->phase;
      failure.step = cell.result.ended->step;
      failure.ranks = cell.result.ended->ranks;
      failure.cause = "the run ends here: " + cell.result.ended->message;
      suspects.push_back({cell.result.ended->order, Gate::g3, failure});
    }
    report.gates[Gate::g3] = gate;
  }

  void judge_logits(const CellRun& cell, Phase phase, const EndToEnd& plain, WeightStore& weights,
                    CellReport& report, std::vector<Suspect>& suspects) {
    const std::string logits = logits_of(*cell.program, phase);
    EndToEnd yardstick = plain;
    const bool f64 = cell.settings.storage == DType::f64 && cell.settings.wire == DType::f64;
    report.logits = end_to_end(cell.taps, logits, reference_, f64 ? nullptr : &yardstick);
    const auto enough = [&] {
      return report.logits.rel_fro <= kG4Ratio * yardstick.rel_fro && report.logits.unexcused == 0;
    };
    if (!f64 && report.logits.complete && cell.program->mesh.ranks() > 1 && !enough()) {
      widen(yardstick, split_yardstick(cell, phase, weights));
      report.logits = end_to_end(cell.taps, logits, reference_, &yardstick);
    }
    const EndToEnd& e = report.logits;
    const Gate gate = f64 ? Gate::g2 : Gate::g4;
    GateResult& result = report.gates[gate];
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
    suspects.push_back({static_cast<int>(cell.program->instructions.at(phase).size()), gate, failure});
  }

  /// Ranks in order, and the cause that other evidence at the same place gives.
  void explain(const Program& program, const std::vector<Suspect>& suspects, int order,
               FirstFailure& first) {
    std::sort(first.ranks.begin(), first.ranks.end());
    first.ranks.erase(std::unique(first.ranks.begin(), first.ranks.end()), first.ranks.end());
    first.all_ranks = static_cast<int>(first.ranks.size()) == program.mesh.ranks();
    for (const Finding& finding : program.findings) {
      if (finding.tap != first.tap) continue;
      first.cause = finding.fix.empty() ? finding.sentence
                                        : fmt::format("{}; add {}", finding.sentence, finding.fix);
      return;
    }
    if (!first.cause.empty()) return;
    for (const Suspect& suspect : suspects) {
      if (suspect.order == order && !suspect.failure.cause.empty())
        first.cause = suspect.failure.cause;
    }
    if (first.cause.empty() && std::isnan(first.got)) first.cause = "not a number";
  }

  std::string repro(const CellReport& cell) const {
    std::string text = options_.repro;
    text += cell.mesh.axes.size() == 1 && cell.mesh.axes[0].name == "tp"
                ? fmt::format(" --tp {}", cell.mesh.ranks())
                : fmt::format(" --mesh {}", to_string(cell.mesh));
    text += fmt::format(" --dtype {} --phase {}", name(cell.dtype), name(cell.phase));
    if (cell.wire != cell.dtype) text += fmt::format(" --wire {}", name(cell.wire));
    return text;
  }

  void dump(const CellRun& cell, Phase phase) {
    const std::size_t cells = options_.meshes.size() * options_.dtypes.size() * options_.phases.size();
    std::filesystem::path folder = options_.dump;
    if (cells > 1) {
      std::string mesh = to_string(cell.program->mesh);
      std::replace(mesh.begin(), mesh.end(), '=', '-');
      std::replace(mesh.begin(), mesh.end(), ',', '-');
      folder /= fmt::format("{}-{}-{}", mesh, name(cell.settings.storage), name(phase));
    }
    write_candidate(folder, *cell.program, cell.taps, sequences_);
  }

  /// By mesh, then precision, then phase: as they were asked for.
  void sort_cells() {
    const auto place = [this](const CellReport& cell) {
      const auto mesh = std::find(options_.meshes.begin(), options_.meshes.end(), cell.mesh);
      const auto dtype = std::find(options_.dtypes.begin(), options_.dtypes.end(), cell.dtype);
      const auto phase = std::find(options_.phases.begin(), options_.phases.end(), cell.phase);
      return std::tuple(mesh - options_.meshes.begin(), dtype - options_.dtypes.begin(),
                        phase - options_.phases.begin());
    };
    std::stable_sort(report_.cells.begin(), report_.cells.end(),
                     [&](const CellReport& a, const CellReport& b) { return place(a) < place(b); });
  }

  const Model& model_;
  const Plan& plan_;
  const VerifyOptions& options_;
  const VerifyParts& parts_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::unique_ptr<Program> own_single_;
  const Program* single_ = nullptr;
  std::unique_ptr<Device> device_;
  Sequences sequences_;
  std::map<Phase, std::vector<Step>> steps_;
  ReferenceLogits reference_;
  std::optional<CellRun> single_run_;  // the plain yardstick, where it is a cell of its own
  std::map<const Program*, std::vector<WiringFault>> inspected_;  // of the current precision
  VerifyReport report_;
};

}  // namespace

VerifyParts builtin_parts() { return {builtin_devices(), builtin_worlds(), builtin_ops()}; }

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
      return "logits against one rank's error";
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

VerifyReport verify(const Model& model, const Plan& plan, const VerifyOptions& options,
                    const VerifyParts& parts) {
  return Verification(model, plan, options, parts).run();
}

}  // namespace shardcheck
