// SPDX-License-Identifier: Apache-2.0
#include "harness/faults/trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "harness/assess.hpp"
#include "harness/faults/anatomy.hpp"
#include "harness/faults/rounding.hpp"
#include "harness/lint.hpp"
#include "harness/locate.hpp"
#include "harness/prove.hpp"
#include "harness/wiring.hpp"
#include "harness/yardstick.hpp"
#include "model/error.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

constexpr Phase kPhases[] = {Phase::prefill, Phase::decode};
constexpr FaultGate kNumbers[] = {FaultGate::f64, FaultGate::f32, FaultGate::bf16, FaultGate::fp16};

/// Eight tokens: two sequences of unlike lengths, so that rows, positions and caches can be mixed up; the last two of
/// each are decoded.
InputOptions trial_inputs() {
  InputOptions inputs;
  inputs.lengths = {5, 3};
  inputs.decode_steps = 2;
  return inputs;
}

DType dtype_of(FaultGate gate) {
  switch (gate) {
    case FaultGate::f32:
      return DType::f32;
    case FaultGate::bf16:
      return DType::bf16;
    case FaultGate::fp16:
      return DType::f16;
    default:
      return DType::f64;
  }
}

bool same_ranks(std::vector<int> a, std::vector<int> b) {
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

bool lists(std::string_view words, std::string_view word) {
  return fmt::format("|{}|", words).find(fmt::format("|{}|", word)) != std::string::npos;
}

/// True where every value of every rank has the same bits.
bool same_bits(const TapRun& a, const TapRun& b) {
  for (std::size_t s = 0; s < a.steps.size(); ++s) {
    const std::vector<TapValue>& values = a.steps[s].values;
    if (values.size() != b.steps[s].values.size()) return false;
    for (const TapValue& value : values) {
      const TapValue* other = b.steps[s].find(value.name);
      if (other == nullptr) return false;
      for (std::size_t rank = 0; rank < value.ranks.size(); ++rank) {
        if (!value.ranks[rank].bitwise_equal(other->ranks[rank])) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::string_view name(FaultStatus status) {
  switch (status) {
    case FaultStatus::caught:
      return "caught";
    case FaultStatus::missed:
      return "missed";
    case FaultStatus::below_rounding:
      return "below_rounding";
    case FaultStatus::no_effect:
      return "no_effect";
    case FaultStatus::not_its_job:
      return "not_its_job";
  }
  return "?";
}

bool FaultRow::first_is_right() const {
  if (gate == FaultGate::lint) return true;  // lint names rules
  return first.tap == expected.tap && same_ranks(first.ranks, expected.ranks);
}

bool FaultRow::cause_is_right() const { return lists(expected_cause, cause); }

class FaultBench::Impl {
 public:
  Impl(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes, const VerifyParts& parts)
      : model_(model), plan_(plan), parts_(parts), device_(parts.devices.make("cpu")) {
    for (const FaultGate gate : kNumbers)
      weights_.emplace(dtype_of(gate), std::make_unique<WeightStore>(model, dtype_of(gate)));
    judge_.arithmetic = [this](Primitive primitive, DType storage) {
      return device_->arithmetic(primitive, storage);
    };
    judge_.threads = 1;
    judge_.ops = &parts.local_ops;
    diagnose_ = {judge_.arithmetic, judge_.ops, false};
    for (const Mesh& mesh : meshes) add_case(mesh);
  }

  struct Correct {
    TapRun taps;
    EndToEnd plain, split;  // yardsticks
  };
  struct Case {
    ResolvedPlan plan;
    Program program, single;
    Sequences sequences;
    ReferenceLogits reference;
    std::map<Phase, std::vector<Step>> steps;
    std::map<std::pair<DType, Phase>, Correct> correct;
  };

  std::vector<FaultRow> try_fault(const Fault& fault, const Spot& spot, const Case& c) const {
    const std::optional<Planted> planted = fault.plant(c.program, spot);
    if (!planted) return {};
    std::optional<Program> edited;
    if (planted->edit_plan || planted->edit_program) {
      ResolvedPlan plan = c.plan;
      if (planted->edit_plan) planted->edit_plan(plan);
      edited = build_program(model_, plan, parts_.ops);
      if (planted->edit_program) planted->edit_program(*edited);
    }
    const Program& program = edited ? *edited : c.program;
    const std::vector<FaultGate> jobs = jobs_of(fault);
    std::vector<FaultRow> rows;
    std::optional<TapRun> f64;  // with the fault
    bool effect = false;
    for (const FaultGate gate : kFaultGates) {
      FaultRow& row = rows.emplace_back();
      row.fault = fault.name;
      row.source = fault.source;
      row.kind = fault.kind;
      row.layer = fault.layer;
      row.model = model_.config().name;
      row.plan = plan_.name;
      row.spot = spot;
      row.mesh = c.program.mesh;
      row.gate = gate;
      row.expected_cause = fault.cause;
      if (std::find(jobs.begin(), jobs.end(), gate) == jobs.end()) {
        row.status = FaultStatus::not_its_job;
        continue;
      }
      if (gate == FaultGate::lint) {
        lint_it(fault, program, row);
        continue;
      }
      if (gate == FaultGate::prove) {
        prove_it(fault, *planted, spot, c, row);
        continue;
      }
      row.expected = planted->first;
      effect = run_it(fault, spot, c, program, row, f64) || effect;
    }
    if (effect) return rows;
    for (FaultRow& row : rows) {
      if (row.status != FaultStatus::not_its_job) row.status = FaultStatus::no_effect;
    }
    return rows;
  }

  std::vector<std::unique_ptr<Case>> cases;
  std::int64_t correct_runs = 0;
  std::vector<std::string> alarms;

 private:
  void add_case(const Mesh& mesh) {
    auto c = std::make_unique<Case>();
    c->plan = resolve(plan_, model_, mesh);
    c->program = build_program(model_, c->plan, parts_.ops);
    Mesh one = mesh;
    for (Mesh::Axis& axis : one.axes) axis.size = 1;
    c->single = build_program(model_, resolve(plan_, model_, one), parts_.ops);
    const Program* programs[] = {&c->program};
    c->sequences = make_sequences(trial_inputs(), model_.config(), programs);
    c->steps[Phase::prefill] = prefill_steps(c->sequences, 0);
    c->steps[Phase::decode] = decode_steps(c->sequences, trial_inputs());
    c->reference = reference_logits(model_, c->sequences);
    for (const FaultGate gate : kNumbers) {
      for (const Phase phase : kPhases) {
        const DType dtype = dtype_of(gate);
        Correct& correct = c->correct[{dtype, phase}];
        const auto yardstick = [&](std::unique_ptr<Interposer> sums) {
          const CellRun unsharded = run(*c, c->single, dtype, phase, sums.get());
          return end_to_end(unsharded.taps, logits_tap(c->single, phase), c->reference, nullptr);
        };
        correct.plain = yardstick(nullptr);
        correct.split = yardstick(make_split_sums(c->program));
        CellRun cell = run(*c, c->program, dtype, phase, nullptr);
        const CellReport report = judged(*c, cell, phase);
        ++correct_runs;
        if (report.verdict != Verdict::passed) {
          alarms.push_back(fmt::format("{} {} {} {}: the correct program is {}{}",
                                       model_.config().name, to_string(mesh), name(dtype),
                                       name(phase), name(report.verdict),
                                       report.first ? " at " + report.first->tap : ""));
        }
        correct.taps = std::move(cell.taps);
      }
    }
    cases.push_back(std::move(c));
  }

  CellRun run(const Case& c, const Program& program, DType dtype, Phase phase,
              Interposer* interposer) const {
    CellRun cell;
    cell.program = cell.executed = &program;
    cell.settings = {dtype, dtype, {}};
    cell.steps = c.steps.at(phase);
    const std::unique_ptr<World> world = parts_.worlds.make("threads", program.mesh);
    TapCollector collector(program, cell.settings, cell.steps);
    WeightStore& weights = *weights_.at(dtype);
    WeightInspector inspector(weights);
    RunOptions options;
    options.taps = &collector;
    options.check_wiring = true;
    options.interposer = interposer;
    options.inspect = [&](RankContext& context) { inspector.inspect(context); };
    Device* const device = device_.get();
    cell.result = run_program(program, *world, {&device, 1}, weights, cell.settings, cell.steps,
                              options);
    cell.weight_faults = inspector.faults();
    cell.taps = collector.release();
    return cell;
  }

  CellReport judged(const Case& c, const CellRun& cell, Phase phase) const {
    const JudgeCell one{cell.program, &cell.taps};
    const std::vector<std::vector<TapScore>> scores = judge_local(model_, {&one, 1}, judge_);
    const Correct& correct = c.correct.at({cell.settings.storage, phase});
    Measures measures{c.reference, scores[0], correct.plain, [&] { return correct.split; }};
    measures.diagnose = &diagnose_;
    return assess(model_, parts_, cell, phase, measures);
  }

  void lint_it(const Fault& fault, const Program& program, FaultRow& row) const {
    row.expected_cause = fault.rule;
    row.status = FaultStatus::missed;
    for (const LintFinding& found : lint(program)) {
      if (found.severity != Severity::error) continue;
      const bool expected = lists(fault.rule, found.finding.rule);
      if (row.status == FaultStatus::caught && !expected) continue;
      row.status = FaultStatus::caught;
      row.cause = found.finding.rule;
      row.first.tap = found.finding.tap;
      if (expected) break;
    }
  }

  void prove_it(const Fault& fault, const Planted& planted, const Spot& spot, const Case& c,
                FaultRow& row) const {
    row.expected = planted.differs.value_or(planted.first);
    row.expected_cause = {};  // prove gives a counter-example
    ProveOptions options;
    options.meshes = {c.program.mesh};
    options.phases = {spot.phase};
    options.shrink = false;
    options.seeds = 1;
    options.force = true;
    options.counterexample = false;
    options.edit_plan = planted.edit_plan;
    options.edit_program = planted.edit_program;
    // Planted anew for each run, by the correct program: what it is to change has the same names and places.
    options.fault = [&](const Program&, const RunSettings&, Phase) -> std::unique_ptr<Interposer> {
      return interposer_of(std::make_shared<Planted>(*fault.plant(c.program, spot)));
    };
    try {
      const ProveReport report = prove(model_, plan_, options, parts_);
      const ProveCell& cell = report.cells.at(0);
      row.status = cell.verdict == ProofVerdict::equal ? FaultStatus::missed : FaultStatus::caught;
      if (cell.first) row.first = {cell.first->tap, cell.first->ranks};
      if (row.first.ranks.empty()) row.first.ranks = faults::everyone(c.program);  // all stop
      if (cell.verdict == ProofVerdict::unproven) row.note = "unproven: " + cell.reason;
    } catch (const CommError& error) {
      stopped(error.what(), c.program, row);
    }
  }

  /// Ranks whose exchanges don't match stop with a message that lists each one's call: "rank 1: all_reduce [8, 48] f32 at
  /// embed_tokens (prefill step 0); ...". The earliest of those places is the first, for all ranks that are listed.
  static void stopped(const std::string& message, const Program& program, FaultRow& row) {
    row.status = FaultStatus::caught;
    row.note = message;
    row.cause = "collective_differs";
    row.first = {};
    int earliest = std::numeric_limits<int>::max();
    constexpr std::string_view kRank = "rank ", kAt = " at ";
    for (std::size_t begin = message.find(kRank); begin != std::string::npos;) {
      const std::size_t end = std::min(message.find(';', begin), message.size());
      const std::string call = message.substr(begin, end - begin);  // "rank 1: all_reduce ... at embed_tokens (prefill step 0)"
      const std::size_t at = call.find(kAt), open = call.find(" (", at);
      if (at != std::string::npos && open != std::string::npos) {
        row.first.ranks.push_back(std::atoi(call.c_str() + kRank.size()));
        const std::string place = call.substr(at + kAt.size(), open - at - kAt.size());
        const int order = program_order(program, row.spot.phase, place);
        if (order < earliest) row.first.tap = place;
        earliest = std::min(earliest, order);
      }
      begin = message.find(kRank, end);
    }
    std::sort(row.first.ranks.begin(), row.first.ranks.end());
  }

  /// True if a value differs from the correct run's.
  bool run_it(const Fault& fault, const Spot& spot, const Case& c, const Program& program,
              FaultRow& row, std::optional<TapRun>& f64) const {
    const DType dtype = dtype_of(row.gate);
    const Correct& correct = c.correct.at({dtype, spot.phase});
    const auto interposer = interposer_of(std::make_shared<Planted>(*fault.plant(c.program, spot)));
    CellRun cell;
    try {
      cell = run(c, program, dtype, spot.phase, interposer.get());
    } catch (const CommError& error) {
      stopped(error.what(), c.program, row);
      return true;
    }
    if (same_bits(cell.taps, correct.taps)) {
      row.status = FaultStatus::no_effect;
      return false;
    }
    const CellReport report = judged(c, cell, spot.phase);
    row.status = report.verdict == Verdict::passed ? FaultStatus::missed : FaultStatus::caught;
    if (report.first) {
      row.first = {report.first->tap, report.first->ranks};
      // Every op is right by its own inputs: where the values leave the reference's says more than the logits.
      if (report.first->gate == Gate::g2 || report.first->gate == Gate::g4) {
        const std::optional<Propagated> left = first_propagated(
            Locator({&model_, cell.program, &cell.taps, &c.sequences}, parts_).rows());
        if (left)
          row.first = {left->tap, left->ranks.empty() ? faults::everyone(c.program) : left->ranks};
      }
      row.cause = report.first->cause_name;
      row.note = report.first->cause;
      row.margin = report.gates.at(report.first->gate).margin.value_or(0.0);
    } else if (report.worst) {
      row.margin = report.worst->margin();
    }
    if (row.gate == FaultGate::f64) {
      f64 = std::move(cell.taps);
    } else if (!(row.caught() && row.first_is_right()) && fault.layer != FaultLayer::precision && f64) {
      const EffectQuestion question{&c.program, &row.expected, &correct.taps,
                                    &c.correct.at({DType::f64, spot.phase}).taps, &*f64};
      if (effect_is_below_rounding(model_, question, judge_))
        row.status = FaultStatus::below_rounding;
    }
    return true;
  }

  const Model& model_;
  Plan plan_;
  const VerifyParts& parts_;
  std::unique_ptr<Device> device_;
  std::map<DType, std::unique_ptr<WeightStore>> weights_;
  JudgeOptions judge_;
  DiagnoseOptions diagnose_;
};

FaultBench::FaultBench(const Model& model, const Plan& plan, const std::vector<Mesh>& meshes,
                       const VerifyParts& parts)
    : impl_(std::make_unique<Impl>(model, plan, meshes, parts)) {}
FaultBench::~FaultBench() = default;

std::size_t FaultBench::meshes() const { return impl_->cases.size(); }
const Program& FaultBench::program(std::size_t mesh) const { return impl_->cases[mesh]->program; }
std::int64_t FaultBench::correct_runs() const { return impl_->correct_runs; }
const std::vector<std::string>& FaultBench::alarms() const { return impl_->alarms; }

std::vector<FaultRow> FaultBench::try_fault(const Fault& fault, const Spot& spot,
                                            std::size_t mesh) const {
  return impl_->try_fault(fault, spot, *impl_->cases[mesh]);
}

}  // namespace shardcheck
