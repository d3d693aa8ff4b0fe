// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/assess.hpp"
#include "harness/candidate.hpp"
#include "harness/candidate_names.hpp"
#include "harness/end_to_end.hpp"
#include "harness/mistrust.hpp"
#include "harness/wiring.hpp"
#include "harness/yardstick.hpp"
#include "reference/transformer.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

using reference::Matrix;

/// A correct run in the same precision shows an error like the unsharded one's; four times it is certainly another.
/// In f64 the yardstick sums as the reference does and may show no error at all: there G2's limit is the rule.
constexpr double kYardsticks = 4.0;

/// f64 values of every tap, step by step, rows as in the step.
using StepValues = std::vector<std::map<std::string, Matrix<double>, std::less<>>>;

void append_rows(Matrix<double>& to, const Matrix<double>& rows) {
  std::vector<double> values(to.values().begin(), to.values().end());
  values.insert(values.end(), rows.values().begin(), rows.values().end());
  to = Matrix<double>(to.rows() + rows.rows(), rows.cols(), std::move(values));
}

/// Values that no tap of a step is of are not kept.
StepValues reference_values(const Model& model, const Candidate& candidate,
                            const std::map<std::string, std::string, std::less<>>& inputs) {
  std::vector<reference::Transformer<double>> sequences;
  for (std::size_t i = 0; i < candidate.sequences.size(); ++i) sequences.emplace_back(model);
  StepValues values(candidate.run.steps.size());
  for (std::size_t s = 0; s < candidate.run.steps.size(); ++s) {
    const StepTaps& step = candidate.run.steps[s];
    std::set<std::string> wanted;
    for (const TapValue& value : step.values) wanted.insert(value_behind(value.name, inputs));
    for (const StepSequence& part : step.step.sequences) {
      if (part.count == 0) continue;
      const auto& ids = candidate.sequences[static_cast<std::size_t>(part.sequence)];
      const std::span<const std::int64_t> chunk(ids.data() + part.first,
                                                static_cast<std::size_t>(part.count));
      sequences[static_cast<std::size_t>(part.sequence)].forward(
          chunk, [&](std::string_view tap, const Matrix<double>& value) {
            const std::string name(tap);
            if (wanted.count(name) != 0)
              append_rows(values[s].try_emplace(name, 0, value.cols()).first->second, value);
          });
    }
  }
  return values;
}

/// What a tap is held against. "X.partial" and "X.reduced" are X, less its bias where it is added later.
struct Truth {
  const Matrix<double>* value = nullptr;
  std::vector<double> bias;  // to subtract; empty: none
};

class Comparer {
 public:
  Comparer(const Model& model, const Candidate& candidate, const VerifyParts& parts)
      : model_(model),
        candidate_(candidate),
        run_(candidate.run),
        parts_(parts),
        inputs_(module_inputs(model.config())) {}

  CandidateReport compare() {
    report_.unknown = candidate_.unknown;
    truth_ = reference_values(model_, candidate_, inputs_);
    run_yardstick(nullptr);
    compare_taps();
    const bool close = std::all_of(
        report_.rows.begin(), report_.rows.end(),
        [](const CandidateRow& row) { return row.passed() || !row.problem.empty(); });
    if (!close && run_.mesh.ranks() > 1) {
      // The error of one run is a matter of luck where one value is far larger than the rest: see harness/yardstick.hpp.
      run_yardstick(make_split_sums(candidate_.program));
      report_.rows.clear();
      compare_taps();
    }
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
  void compare_taps() {
    for (std::size_t s = 0; s < run_.steps.size(); ++s) {
      for (const TapValue& value : run_.steps[s].values) compare_tap(s, value);
    }
  }

  /// Runs the model unsharded, plainly or with the candidate's sums.
  void run_yardstick(std::unique_ptr<Interposer> sums) {
    Mesh one = run_.mesh;
    for (Mesh::Axis& axis : one.axes) axis.size = 1;
    const Program program = candidate_program(model_, parts_.ops, one, {});
    const DType dtype = coarser(run_.storage, run_.wire);
    if (!weights_) weights_.emplace(model_, dtype);
    const std::unique_ptr<Device> device = parts_.devices.make("cpu");
    Device* const pointer = device.get();
    const std::unique_ptr<World> world = parts_.worlds.make("threads", one);
    std::vector<Step> steps;
    for (const StepTaps& step : run_.steps) steps.push_back(step.step);
    const RunSettings settings{dtype, sums ? run_.wire : dtype, run_.reduction};
    TapCollector collector(program, settings, steps);
    RunOptions options;
    options.taps = &collector;
    options.interposer = sums.get();
    run_program(program, *world, {&pointer, 1}, *weights_, settings, steps, options);
    yardsticks_.push_back(collector.release());
  }

  Truth truth_of(std::size_t s, const std::string& tap) const {
    const auto found = truth_[s].find(value_behind(tap, inputs_));
    if (found == truth_[s].end()) return {};
    Truth truth{&found->second, {}};
    const Stage stage = stage_of(tap);
    if (stage.kind != Stage::Kind::partial && stage.kind != Stage::Kind::reduced) return truth;
    const Module& module = model_.module(stage.module);
    if (module.kind == ModuleKind::linear && module.has_bias && !has_its_bias(module, tap)) {
      truth.bias.resize(static_cast<std::size_t>(module.out));
      model_.read_rows(module.bias(), 0, module.out, truth.bias);
    }
    return truth;
  }
  /// True if a stage of a module comes from where its bias is added, or later.
  bool has_its_bias(const Module& module, const std::string& stage) const {
    for (const Instruction& instruction : candidate_.program.instructions.at(Phase::prefill)) {
      if (instruction.module != module.path) continue;
      const bool adds = instruction.op != nullptr &&
                        (instruction.adds_bias || instruction.op->name() == "bias");
      if (adds) return true;
      if (instruction.site == stage) return false;
    }
    return false;
  }
  int instruction_count() const {
    return static_cast<int>(candidate_.program.instructions.at(Phase::prefill).size());
  }

  /// The unsharded runs' relative error at the same place; containers and stages share their module's.
  double yardstick_error(std::size_t s, const std::string& tap) const {
    double largest = 0.0;
    for (const TapRun& run : yardsticks_)
      largest = std::max(largest, yardstick_error(run.steps[s], s, tap));
    return largest;
  }
  double yardstick_error(const StepTaps& step, std::size_t s, const std::string& tap) const {
    const std::string name = value_behind(tap, inputs_);
    const TapValue* value = step.find(name);
    if (value == nullptr) value = step.find(alias(name));
    if (value == nullptr) return 0.0;
    const auto reference = truth_[s].find(name);
    const std::vector<double> got = value->ranks[0].to_f64();
    // The gate's product stands in for silu(gate) alone, which the program never stores.
    const Matrix<double>& truth = reference != truth_[s].end() ? reference->second
                                                               : truth_[s].begin()->second;
    if (value->name != name && got.size() != truth.values().size()) return 0.0;
    if (value->name != name && name.find("act_fn") != std::string::npos)
      return act_fn_error(step, s, name);
    return relative_error(got, truth.values());
  }

  /// silu of the unsharded run's gate, rounded as that run would round it.
  double act_fn_error(const StepTaps& step, std::size_t s, const std::string& name) const {
    const TapValue* gate = step.find(name.substr(0, name.rfind('.')) + ".gate_proj");
    if (gate == nullptr) return 0.0;
    std::vector<double> values = gate->ranks[0].to_f64();
    for (double& x : values) x = x / (1.0 + std::exp(-x));
    const HostTensor rounded = round_to(gate->ranks[0].dtype(), gate->ranks[0].shape(), values);
    return relative_error(rounded.to_f64(), truth_[s].at(name).values());
  }

  static double relative_error(std::span<const double> got, std::span<const double> truth) {
    double error = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double e = got[i] - truth[i];
      error += e * e;
      norm += truth[i] * truth[i];
    }
    return error == 0.0 ? 0.0 : std::sqrt(error / norm);
  }

  /// The program's value that a container's output is.
  std::string alias(const std::string& name) const {
    for (std::int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
      const BlockPaths at = block_paths(model_.config(), layer);
      for (const Module& module : model_.modules()) {
        if (module.layer != layer) continue;
        if (module.role == ModuleRole::o && name == at.attention) return module.path;
        if (module.role == ModuleRole::down && name == at.mlp) return module.path;
      }
      if (name == at.mlp + ".act_fn") return at.mlp + ".act";
    }
    return name;
  }

  int order_of(const std::string& tap) const {
    const int order = program_order(candidate_.program, Phase::prefill, tap);
    return order < instruction_count()
               ? order
               : program_order(candidate_.program, Phase::prefill, alias(tap));
  }

  void compare_tap(std::size_t s, const TapValue& value) {
    const StepTaps& step = run_.steps[s];
    CandidateRow row;
    row.tap = value.name;
    row.phase = step.step.phase;
    row.step = step.step.index;
    row.order = order_of(value.name);
    const Truth truth = truth_of(s, value.name);
    check_shapes(step, value, truth, row);
    if (row.problem.empty() && truth.value == nullptr)
      row.problem = "the reference has no such value in this step";
    if (row.problem.empty()) {
      row.limit = judged_as_f64() ? kG2Limit : kYardsticks * yardstick_error(s, value.name);
      measure(value, truth, row);
    }
    report_.rows.push_back(std::move(row));
  }

  bool judged_as_f64() const { return coarser(run_.storage, run_.wire) == DType::f64; }

  void check_shapes(const StepTaps& step, const TapValue& value, const Truth& truth, CandidateRow& row) {
    const std::int64_t rows = truth.value == nullptr ? step.step.tokens() : truth.value->rows();
    for (int rank = 0; rank < run_.mesh.ranks(); ++rank) {
      const HostTensor& tensor = value.ranks[static_cast<std::size_t>(rank)];
      const auto note = [&](std::string problem) {
        row.ranks.push_back(rank);
        if (row.problem.empty()) row.problem = std::move(problem);
      };
      if (tensor.shape().empty()) {
        note(fmt::format("rank {} has no such tensor", rank));
        continue;
      }
      const std::vector<std::int64_t> wanted{total(value.layout.token_ranges(run_.mesh, rank, rows)),
                                             value.layout.local_features(rank)};
      if (tensor.shape() != wanted) {
        note(fmt::format("rank {} has shape {}, its placement needs {}", rank,
                         to_string(tensor.shape()), to_string(wanted)));
        continue;
      }
      const std::vector<double> numbers = tensor.to_f64();
      const auto bad = std::find_if(numbers.begin(), numbers.end(),
                                    [](double x) { return !std::isfinite(x); });
      if (bad != numbers.end()) {
        const auto at = bad - numbers.begin();
        note(fmt::format("rank {} holds {} at row {}, feature {} of its part", rank, *bad,
                         at / tensor.cols(), at % tensor.cols()));
      }
    }
  }

  /// Every replica group's assembled value against the truth; ranks whose own part is off by more than the limit.
  void measure(const TapValue& value, const Truth& truth, CandidateRow& row) {
    const Mesh& mesh = run_.mesh;
    const std::int64_t rows = truth.value->rows(), cols = truth.value->cols();
    const bool partial = value.layout.any_partial();
    std::vector<double> whole(static_cast<std::size_t>(rows * cols), 0.0);
    std::vector<bool> filled(whole.size(), false);
    const auto expected = [&](std::int64_t r, std::int64_t c) {
      return (*truth.value)(r, c) -
             (truth.bias.empty() ? 0.0 : truth.bias[static_cast<std::size_t>(c)]);
    };
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      if (partial && !first_on_unsummed_axes(value.layout, rank)) continue;
      const std::vector<double> mine = value.ranks[static_cast<std::size_t>(rank)].to_f64();
      double error = 0.0;
      std::size_t at = 0;
      for (const Range& token : value.layout.token_ranges(mesh, rank, rows)) {
        for (std::int64_t r = token.begin; r < token.end; ++r) {
          for (const Range& range : value.layout.feature_ranges(rank)) {
            for (std::int64_t c = range.begin; c < range.end; ++c, ++at) {
              const auto index = static_cast<std::size_t>(r * cols + c);
              if (partial) {
                whole[index] += mine[at];
              } else if (!filled[index]) {
                whole[index] = mine[at];
              }
              filled[index] = true;
              const double e = mine[at] - expected(r, c);
              error += e * e;
            }
          }
        }
      }
      if (partial) continue;  // a share of a sum can't be judged alone
      // The whole's norm is the scale: a small part of a value may be off by more of itself in a correct run.
      const double part = error == 0.0 ? 0.0 : std::sqrt(error) / norm_of(truth, rows, cols);
      if (!(part <= row.limit)) row.ranks.push_back(rank);
    }
    double error = 0.0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const double e = whole[static_cast<std::size_t>(r * cols + c)] - expected(r, c);
        error += e * e;
      }
    }
    row.rel_fro = error == 0.0 ? 0.0 : std::sqrt(error) / norm_of(truth, rows, cols);
    if (row.rel_fro <= row.limit && !row.ranks.empty()) {
      row.problem = fmt::format("rank {} has another value than the ranks before it",
                                fmt::join(row.ranks, ", "));
    }
  }

  static double norm_of(const Truth& truth, std::int64_t rows, std::int64_t cols) {
    double norm = 0.0;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        const double y = (*truth.value)(r, c) -
                         (truth.bias.empty() ? 0.0 : truth.bias[static_cast<std::size_t>(c)]);
        norm += y * y;
      }
    }
    return std::sqrt(norm);
  }

  /// Coordinate 0 on every axis that replicates a partial value: each share is added once.
  bool first_on_unsummed_axes(const Layout& layout, int rank) const {
    const std::vector<int> at = run_.mesh.coordinates(rank);
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      if (layout.placements[axis].kind == Placement::Kind::R && at[axis] != 0) return false;
    }
    return true;
  }

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
          row.order = order_of(value.name);
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
                                        judged_as_f64() ? "that of f64 runs"
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
  }

  const Model& model_;
  const Candidate& candidate_;
  const TapRun& run_;
  const VerifyParts& parts_;
  std::map<std::string, std::string, std::less<>> inputs_;  // of modules
  StepValues truth_;
  std::optional<WeightStore> weights_;  // of the unsharded runs
  std::vector<TapRun> yardsticks_;
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
