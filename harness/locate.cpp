// SPDX-License-Identifier: Apache-2.0
#include "harness/locate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "harness/candidate_names.hpp"
#include "harness/end_to_end.hpp"
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
StepValues reference_values(const LocatedRun& located,
                            const std::map<std::string, std::string, std::less<>>& inputs) {
  std::vector<reference::Transformer<double>> sequences;
  for (std::size_t i = 0; i < (*located.sequences).size(); ++i)
    sequences.emplace_back(*located.model);
  StepValues values((*located.run).steps.size());
  for (std::size_t s = 0; s < (*located.run).steps.size(); ++s) {
    const StepTaps& step = (*located.run).steps[s];
    std::set<std::string> wanted;
    for (const TapValue& value : step.values) wanted.insert(value_behind(value.name, inputs));
    for (const StepSequence& part : step.step.sequences) {
      if (part.count == 0) continue;
      const auto& ids = (*located.sequences)[static_cast<std::size_t>(part.sequence)];
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

}  // namespace

class Locator::Impl {
 public:
  Impl(const LocatedRun& located, const VerifyParts& parts)
      : located_(located),
        model_(*located.model),
        program_(*located.program),
        run_(*located.run),
        parts_(parts),
        inputs_(module_inputs(model_.config())) {}

  std::vector<CandidateRow> rows() {
    truth_ = reference_values(located_, inputs_);
    run_yardstick(nullptr);
    compare_taps();
    const bool close = std::all_of(rows_.begin(), rows_.end(), [](const CandidateRow& row) {
      return row.passed() || !row.problem.empty();
    });
    if (!close && run_.mesh.ranks() > 1) {
      // The error of one run is a matter of luck where one value is far larger than the rest: see harness/yardstick.hpp.
      run_yardstick(make_split_sums(program_));
      rows_.clear();
      compare_taps();
    }
    return std::move(rows_);
  }

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
    for (const Instruction& instruction : program_.instructions.at(Phase::prefill)) {
      if (instruction.module != module.path) continue;
      const bool adds = instruction.op != nullptr &&
                        (instruction.adds_bias || instruction.op->name() == "bias");
      if (adds) return true;
      if (instruction.site == stage) return false;
    }
    return false;
  }
  int instruction_count() const {
    return static_cast<int>(program_.instructions.at(Phase::prefill).size());
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
    const int order = program_order(program_, Phase::prefill, tap);
    return order < instruction_count() ? order : program_order(program_, Phase::prefill, alias(tap));
  }

  void compare_tap(std::size_t s, const TapValue& value) {
    const StepTaps& step = run_.steps[s];
    CandidateRow row;
    row.tap = value.name;
    row.phase = step.step.phase;
    row.step = step.step.index;
    row.order = order_of(value.name);
    const Truth truth = truth_of(s, value.name);
    check_shapes(s, value, row);
    // Errors of a norm's sum of squares cancel by chance, so that an unsharded run's are no yardstick: G3 judges it.
    if (row.problem.empty() && dtype_of_tap(value.name, value.layout) == ValueDType::accumulate)
      return;
    if (row.problem.empty() && truth.value == nullptr) {
      row.problem = "the reference has no such value in this step";
      row.unknown = true;
    }
    if (row.problem.empty()) {
      row.limit = judged_as_f64() ? kG2Limit : kYardsticks * yardstick_error(s, value.name);
      measure(s, value, truth, row);
    }
    rows_.push_back(std::move(row));
  }

  bool judged_as_f64() const { return coarser(run_.storage, run_.wire) == DType::f64; }

  /// Rows of the step's whole value that a rank has by its placement.
  Ranges rows_held(std::size_t s, const TapValue& value, int rank) const {
    Value placed{value.name, value.layout};
    for (const Value& known : program_.values) {
      if (known.name != value.name) continue;
      placed.rows = known.rows;
      placed.window = known.window;
    }
    std::vector<const Step*> so_far;
    for (std::size_t i = 0; i <= s; ++i) so_far.push_back(&run_.steps[i].step);
    return held_rows(placed, run_.mesh, rank, so_far);
  }

  void check_shapes(std::size_t s, const TapValue& value, CandidateRow& row) {
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
      const std::vector<std::int64_t> wanted{total(rows_held(s, value, rank)),
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
  void measure(std::size_t s, const TapValue& value, const Truth& truth, CandidateRow& row) {
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
      for (const Range& token : rows_held(s, value, rank)) {
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

  LocatedRun located_;
  const Model& model_;
  const Program& program_;
  const TapRun& run_;
  const VerifyParts& parts_;
  std::map<std::string, std::string, std::less<>> inputs_;  // of modules
  StepValues truth_;
  std::optional<WeightStore> weights_;  // of the unsharded runs
  std::vector<TapRun> yardsticks_;
  std::vector<CandidateRow> rows_;
};

Locator::Locator(const LocatedRun& located, const VerifyParts& parts)
    : impl_(std::make_unique<Impl>(located, parts)) {}
Locator::~Locator() = default;
std::vector<CandidateRow> Locator::rows() { return impl_->rows(); }
int Locator::order_of(const std::string& tap) const { return impl_->order_of(tap); }
bool Locator::judged_as_f64() const { return impl_->judged_as_f64(); }

std::optional<Propagated> first_propagated(std::span<const CandidateRow> rows) {
  const CandidateRow* first = nullptr;
  for (const CandidateRow& row : rows) {
    if (row.rel_fro <= row.limit || row.unknown) continue;  // what no number says isn't a value that is off
    if (first == nullptr || row.order < first->order) first = &row;
  }
  if (first == nullptr) return std::nullopt;
  return Propagated{first->tap,   first->phase,   first->step,
                    first->ranks, first->rel_fro, first->limit};
}

}  // namespace shardcheck
