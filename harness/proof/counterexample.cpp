// SPDX-License-Identifier: Apache-2.0
#include "harness/proof/counterexample.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/proof/counterparts.hpp"
#include "harness/proof/shrink.hpp"
#include "harness/proof/whole_comparison.hpp"
#include "model/error.hpp"
#include "model/philox.hpp"
#include "sharded/op.hpp"

namespace shardcheck {
namespace {

constexpr std::int64_t kMostFeatures = 8;  // shown of a row
constexpr int kMostRanks = 16;             // all are shown, else those that differ
constexpr double kVisible = 1e-4;          // of a number's size: a difference in the six digits that are printed

/// Which values are replaced by small integers, and what each stands for in the unsharded program.
using Replaced = std::map<std::string, std::string, std::less<>>;

/// Puts small integers in the place of values, after a planted fault has had its turn.
class IntegerValues final : public Interposer {
 public:
  IntegerValues(std::unique_ptr<Interposer> fault, Replaced replaced)
      : fault_(std::move(fault)), replaced_(std::move(replaced)) {}

  void prepare(RankContext& context) override {
    if (fault_) fault_->prepare(context);
  }
  bool replace(RankContext& context, const Instruction& instruction,
               const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) override {
    return fault_ && fault_->replace(context, instruction, inputs, outputs);
  }
  void after(RankContext& context, const Instruction& instruction,
             std::vector<Tensor>& outputs) override {
    if (fault_) fault_->after(context, instruction, outputs);
    for (std::size_t i = 0; i < outputs.size() && i < instruction.outputs.size(); ++i) {
      const int index = instruction.outputs[i];
      const Value& value = context.program().value(index);
      const auto found = replaced_.find(value.name);
      if (found == replaced_.end()) continue;
      const Ranges rows = context.rows_of(index);
      const Ranges cols = value.layout.feature_ranges(context.rank());
      if (outputs[i].rows != total(rows) || outputs[i].cols != total(cols)) continue;
      const HostTensor integers = part(found->second, value.layout.features, rows, cols,
                                       context.step());
      const Tensor out = context.device().allocate(context.stream(), DType::f64, total(rows),
                                                   total(cols));
      context.device().upload(context.stream(), integers, out);
      outputs[i] = out;
    }
  }
  void between(RankContext& context, const Instruction& instruction,
               std::vector<Tensor>& outputs) override {
    if (fault_) fault_->between(context, instruction, outputs);
  }

 private:
  /// A rank's share of integers that depend on the value, the step and the place in the whole alone.
  static HostTensor part(const std::string& tap, std::int64_t features, const Ranges& rows,
                         const Ranges& cols, const Step& step) {
    HostTensor result(DType::f64, {total(rows), total(cols)});
    const RandomStream random(
        static_cast<std::uint64_t>(2 * step.index + (step.phase == Phase::decode ? 1 : 0)), tap);
    auto out = result.as_mutable<double>().begin();
    for (const Range& row_range : rows) {
      for (std::int64_t row = row_range.begin; row < row_range.end; ++row) {
        for (const Range& col_range : cols) {
          for (std::int64_t col = col_range.begin; col < col_range.end; ++col)
            *out++ = small_integer(random.bits(static_cast<std::uint64_t>(row * features + col)));
        }
      }
    }
    return result;
  }

  std::unique_ptr<Interposer> fault_;
  const Replaced replaced_;
};

/// The layer that a tap belongs to; -1 outside the blocks.
std::int64_t layer_of(const Model& model, std::string_view tap) {
  std::int64_t layer = -1;
  for (const Module& module : model.modules()) {
    if (module.layer < 0) continue;
    const std::string block = block_paths(model.config(), module.layer).layer;
    if (tap == block || tap.starts_with(block + ".")) layer = module.layer;
  }
  return layer;
}

class Search {
 public:
  Search(const Model& model, const Plan& plan, const Mesh& mesh, const FirstDifference& first,
         const Config& proved, Phase phase, const ProveOptions& options, const VerifyParts& parts)
      : model_(model),
        plan_(plan),
        mesh_(mesh),
        first_(first),
        proved_(proved),
        phase_(phase),
        options_(options),
        parts_(parts),
        device_(parts.devices.make("cpu")) {}

  std::optional<Counterexample> run() {
    if (!first_.problem.empty()) return std::nullopt;
    for (const Config& shape : shapes()) {
      const std::optional<ProofPair> pair = make_pair(shape, MadeWeights::small_integers);
      if (!pair) continue;
      for (const std::vector<Step>& steps : {few_tokens(*pair), pair->steps.at(phase_)}) {
        for (const bool integers : {true, false}) {
          // A network of integers is badly conditioned: what rounding makes of it is no example.
          if (std::optional<Counterexample> found = attempt(*pair, steps, integers);
              found && visible(*found))
            return found;
        }
      }
    }
    const std::optional<ProofPair> pair = make_pair(proved_, MadeWeights::normal);
    return pair ? attempt(*pair, pair->steps.at(phase_), false) : std::nullopt;
  }

 private:
  /// Smallest first: few heads and tiny dimensions, then as they were proved.
  std::vector<Config> shapes() const {
    std::vector<Config> all;
    const std::int64_t layer = layer_of(model_, first_.tap);
    for (const bool few_heads : {true, false}) {
      Config config = model_.config();
      config.num_layers = std::max<std::int64_t>(1, layer + 1);
      config.windows.resize(static_cast<std::size_t>(config.num_layers));
      if (few_heads && !reduce_heads(config)) continue;
      for (const ShrinkLimits& limits : {ShrinkLimits{1, 2, 2}, ShrinkLimits{}}) {
        try {
          const Model like = made_model(model_, config, MadeWeights::small_integers);
          all.push_back(options_.shrink ? shrunken(like, plan_, resolve(plan_, like, mesh_), limits)
                                        : config);
        } catch (const InputError&) {  // a pattern that matches another layer, ranges of another head count
        }
      }
    }
    all.push_back(proved_);
    return all;
  }

  /// A few heads that are cut over the ranks as the many are. False if there are few already.
  bool reduce_heads(Config& config) const {
    const std::int64_t ranks = mesh_.ranks(), group = config.num_heads / config.num_kv_heads;
    const std::int64_t kv = config.num_kv_heads <= ranks ? config.num_kv_heads
                                                         : ranks + config.num_kv_heads % ranks;
    std::int64_t per_kv = std::min<std::int64_t>(group, 2);
    while (kv * per_kv < ranks && per_kv < group) ++per_kv;
    if (kv * per_kv >= config.num_heads) return false;
    config.num_kv_heads = kv;
    config.num_heads = kv * per_kv;
    return true;
  }

  std::optional<ProofPair> make_pair(const Config& shape, MadeWeights weights) const {
    try {
      return make_proof_pair(model_, shape, weights, plan_, mesh_, options_, parts_.ops);
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  /// One token, and one more to decode.
  std::vector<Step> few_tokens(const ProofPair& pair) const {
    const std::int64_t id = std::min<std::int64_t>(1, pair.model->config().vocab_size - 1);
    std::vector<Step> steps{{Phase::prefill, 0, {{0, 0, 1}}, {id}}};
    if (phase_ == Phase::decode) steps.push_back({Phase::decode, 0, {{0, 1, 1}}, {0}});
    return steps;
  }

  std::optional<Counterexample> attempt(const ProofPair& pair, const std::vector<Step>& steps,
                                        bool integers) const {
    Replaced sharded_values, whole_values;
    if (integers) {
      sources(pair, sharded_values, whole_values);
      if (sharded_values.empty()) return std::nullopt;
    }
    WeightStore weights(*pair.model, DType::f64);
    try {
      IntegerValues for_whole(nullptr, whole_values);
      IntegerValues for_sharded(fault_of(pair, DType::f64, phase_, options_), sharded_values);
      const ProofRun whole = run_for_proof(pair.whole, *device_, weights, DType::f64, steps,
                                           &for_whole, parts_);
      const ProofRun sharded = run_for_proof(pair.sharded, *device_, weights, DType::f64, steps,
                                             &for_sharded, parts_);
      const RunComparison comparison = compare_runs(sharded, whole, weights, pair.plan, *device_);
      if (!comparison.first || comparison.first->tap != first_.tap ||
          !comparison.first->problem.empty()) {
        return std::nullopt;
      }
      return describe(pair, steps, sharded, whole, weights, *comparison.first, integers);
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  /// Some number that is shown differs from what it should be in its first digits.
  static bool visible(const Counterexample& example) {
    const bool partial = example.placement.find("P(") != std::string::npos;
    for (std::size_t f = 0; f < example.shares.front().values.size(); ++f) {
      double sum = 0.0, least = std::numeric_limits<double>::infinity(), most = -least;
      for (const Counterexample::Share& share : example.shares) {
        if (!share.values[f]) continue;
        sum += *share.values[f];
        least = std::min(least, *share.values[f]);
        most = std::max(most, *share.values[f]);
      }
      if (!example.whole.empty()) {
        least = partial ? std::min(sum, example.whole[f]) : std::min(least, example.whole[f]);
        most = partial ? std::max(sum, example.whole[f]) : std::max(most, example.whole[f]);
      }
      if (!(most - least <= kVisible * std::max(std::abs(most), std::abs(least))))
        return true;  // NaN is visible
    }
    return false;
  }

  /// The values that the op of the first wrong tap reads, as far back as both programs have them whole.
  void sources(const ProofPair& pair, Replaced& sharded_values, Replaced& whole_values) const {
    const Counterparts counterparts(pair.sharded, pair.whole, first_.phase);
    std::vector<const Instruction*> open;
    for (const Instruction& instruction : pair.sharded.instructions.at(first_.phase)) {
      for (const int output : instruction.outputs) {
        if (pair.sharded.value(output).name == first_.tap) open.push_back(&instruction);
      }
    }
    while (!open.empty()) {
      const Instruction* instruction = open.back();
      open.pop_back();
      for (const int input : instruction->inputs) {
        const Instruction* made = counterparts.producer(input);
        if (made == nullptr) continue;
        const Value& value = pair.sharded.value(input);
        const Counterpart& counterpart = counterparts.of(input);
        const bool usable = !counterpart.tap.empty() && counterpart.without.empty() &&
                            !counterpart.square_sum && !value.layout.any_partial();
        if (usable) {
          sharded_values[value.name] = counterpart.tap;
          whole_values[counterpart.tap] = counterpart.tap;
        } else {
          open.push_back(made);
        }
      }
    }
  }

  Counterexample describe(const ProofPair& pair, const std::vector<Step>& steps,
                          const ProofRun& sharded, const ProofRun& whole, WeightStore& weights,
                          const RunDifference& found, bool integers) const {
    const Step& step = steps[found.step];
    const Counterparts counterparts(pair.sharded, pair.whole, step.phase);
    const Value& value = pair.sharded.value(found.value);
    const Instruction& made = *counterparts.producer(found.value);
    Counterexample example;
    example.shape = pair.model->config();
    example.tap = found.tap;
    example.placement = to_string(value.layout, mesh_);
    example.op = made.op != nullptr ? std::string(made.op->name()) : to_string(made.collective);
    example.integers = integers;
    example.phase = step.phase;
    example.step = step.index;
    example.row = found.row;
    example.features = value.layout.features;
    const std::int64_t shown = std::min(kMostFeatures, example.features);
    example.first_feature = std::clamp<std::int64_t>(found.feature - 2, 0, example.features - shown);
    const Range window{example.first_feature, example.first_feature + shown};

    const Counterpart& counterpart = counterparts.of(found.value);
    if (!counterpart.tap.empty()) {
      const HostTensor expected = expected_value(counterpart, whole.taps.steps[found.step], weights);
      for (std::int64_t f = window.begin; f < window.end; ++f)
        example.whole.push_back(expected.at(found.row * expected.cols() + f));
    }
    std::vector<const Step*> so_far;
    for (std::size_t s = 0; s <= found.step; ++s) so_far.push_back(&steps[s]);
    const TapValue& tap = *sharded.taps.steps[found.step].find(found.tap);
    for (int rank = 0; rank < mesh_.ranks(); ++rank) {
      const bool differs = std::find(found.ranks.begin(), found.ranks.end(), rank) !=
                           found.ranks.end();
      if (mesh_.ranks() > kMostRanks && !differs) continue;
      const HostTensor& part = tap.ranks[static_cast<std::size_t>(rank)];
      const Ranges row = locate(held_rows(value, mesh_, rank, so_far), {{found.row, found.row + 1}});
      Counterexample::Share share{rank, {}};
      for (std::int64_t f = window.begin; f < window.end; ++f) {
        const Ranges col = locate(value.layout.feature_ranges(rank), {{f, f + 1}});
        const bool held = !row.empty() && !col.empty();
        share.values.push_back(
            held ? std::optional(part.at(row[0].begin * part.cols() + col[0].begin)) : std::nullopt);
      }
      example.shares.push_back(std::move(share));
    }
    return example;
  }

  const Model& model_;
  const Plan& plan_;
  const Mesh& mesh_;
  const FirstDifference& first_;
  const Config& proved_;
  const Phase phase_;
  const ProveOptions& options_;
  const VerifyParts& parts_;
  const std::unique_ptr<Device> device_;
};

}  // namespace

std::optional<Counterexample> find_counterexample(const Model& model, const Plan& plan,
                                                  const Mesh& mesh, const FirstDifference& first,
                                                  const Config& proved, Phase phase,
                                                  const ProveOptions& options,
                                                  const VerifyParts& parts) {
  return Search(model, plan, mesh, first, proved, phase, options, parts).run();
}

}  // namespace shardcheck
